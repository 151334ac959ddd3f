"""A private Sublet for one measurement: its own state, and no process left when it ends."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import processes

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(__file__).parent / "programs"
SUBLET = Path(sys.executable).with_name("sublet")
"""The command of the same environment as this interpreter."""


class Sandbox:
    """A directory for files, and an environment that names the state directory within it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SUBLET_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"))
        }
        self.env["SUBLET_HOME"] = str(directory / "home")
        self.env["SUBLET_CONFIG"] = os.devnull
        # Programs that are killed leave temporary files: they go with the sandbox.
        self.env["TMPDIR"] = str(directory)

    def sublet(self, *words: str | Path, timeout: float = 120) -> None:
        """Run a `sublet` command to its end; Failed if it fails."""
        processes.run([SUBLET, *words], self.env, self.log, timeout=timeout)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Within, this process's environment is the sandbox's: `sublet.submit` works there."""
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.env)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def warm_up(self) -> None:
        """Start the broker and wait until its nursery can fork: one program has run."""
        self.sublet("run", PROGRAMS / "first_op.py", self.directory / "warm-up")
        states = [nursery["state"] for nursery in self.status()["nurseries"]]
        if states != ["warm"]:
            raise processes.Failed(f"the nursery is not warm: {states}")

    def status(self) -> dict[str, Any]:
        """The document of `sublet status --json`."""
        ran = subprocess.run(
            [SUBLET, "status", "--json"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        if ran.returncode != 0:
            raise processes.Failed(f"sublet status: {ran.stderr.decode(errors='replace')}")
        document: dict[str, Any] = json.loads(ran.stdout)
        return document


@contextlib.contextmanager
def sandbox() -> Iterator[Sandbox]:
    """A sandbox, ended with all its processes at the dedent, whatever happens within."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path:
        home = Sandbox(Path(path))
        try:
            yield home
        finally:
            try:
                if (home.directory / "home").exists():
                    home.sublet("down", "--stop", timeout=30)
            except processes.Failed as trouble:
                print(f"bench: sublet down: {trouble}", file=sys.stderr)
            finally:
                processes.end_all()
