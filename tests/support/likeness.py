"""One line of shell, with plain Python and under Sublet."""

import subprocess
import sys
from typing import Any

from support.sandbox import PATIENCE, Sandbox

LOG = ("0000 00:00", "before absl::InitializeLog", "To enable the following instructions")
"""In lines of TensorFlow's own log."""
OTHERS = ("bash:", "Terminated", "sublet: ")


def shell(sandbox: Sandbox, command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a line of shell in the sandbox; PLAIN and SUBLET stand for the two ways."""
    environ = {**sandbox.environ, "SUBLET": f"{sys.executable} -m sublet run"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=sandbox.work,
        env={**environ, "PLAIN": sys.executable},
        text=True,
        capture_output=True,
        timeout=PATIENCE,
        **options,
    )


def both(sandbox: Sandbox, command: str, way: str = "warm", **options: Any) -> tuple[str, str]:
    """What a line prints with plain Python and under Sublet."""
    plain = shell(sandbox, command.replace("RUN", "$PLAIN"), **options)
    ours = shell(sandbox, command.replace("RUN", "$SUBLET"), **options)
    assert plain.returncode == ours.returncode, ours.stderr
    assert tidy(plain.stderr) == tidy(ours.stderr)
    assert_started(way, ours)
    return plain.stdout, ours.stdout


def assert_started(way: str, ended: "subprocess.CompletedProcess[str]") -> None:
    """It was this way of starting that was compared."""
    assert f" started {way}" in ended.stderr.rpartition("sublet: lease")[2], ended.stderr


def tidy(text: str) -> list[str]:
    """Without TensorFlow's log lines, Sublet's, and the shell's own about a signal."""
    return [
        line
        for line in text.splitlines()
        if not any(mark in line for mark in LOG) and not line.startswith(OTHERS)
    ]
