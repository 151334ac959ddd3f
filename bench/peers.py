"""Peers that need an environment of their own: made once, in the user's cache.

PyTriton brings a server that is linked with the system's Python, and its own set of packages.
"""

import importlib.metadata
import os
import subprocess
from pathlib import Path

from bench import processes

_SYSTEM = Path("/usr/bin/python3")
_PYTRITON = "nvidia-pytriton==0.7.0"


def pytriton() -> Path:
    """The interpreter of PyTriton's environment; Failed with the reason if it cannot be had."""
    place = _cache() / f"pytriton-{importlib.metadata.version('tensorflow')}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        if not _SYSTEM.exists():
            raise processes.Failed(f"PyTriton needs the system's Python ({_SYSTEM})")
        print("  making an environment for PyTriton, once", flush=True)
        tensorflow = f"tensorflow=={importlib.metadata.version('tensorflow')}"
        _run([_SYSTEM, "-m", "venv", "--clear", place])
        _run([python, "-m", "pip", "install", "--quiet", _PYTRITON, tensorflow])
        (place / "complete").touch()
    return python


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sublet-bench"


def _run(words: list[str | Path]) -> None:
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode != 0:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise processes.Failed(f"PyTriton cannot be installed: {' '.join(last)}")
