"""A training under a lease, and what became of its weights."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.sandbox import SUBLET, Sandbox

_PATIENCE = 600


def run(home: Sandbox, options: Sequence[str], program: Path, *words: str) -> tuple[Any, str]:
    """The report of one run, and what it said."""
    report = home.directory / "report.json"
    ran = subprocess.run(
        [str(SUBLET), "run", "--report", str(report), *options, str(program), *words],
        env=home.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    return json.loads(report.read_text()), ran.stderr


def difference(one: Path, other: Path) -> float:
    """The largest of any weight."""
    with np.load(one) as known, np.load(other) as found:
        return max(float(np.abs(known[name] - found[name]).max()) for name in known.files)
