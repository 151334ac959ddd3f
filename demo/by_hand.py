"""What people do without Sublet: plain `python program.py`, twenty times.

Owns the two ways and the words for how a plain program dies of them.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from demo import race
from demo.catalogue import PROGRAMS, Program
from demo.mark import Mark, available
from demo.race import Entry, Finish, Moment, Race
from sublet.units import GiB, MiB

_PLAIN_PROCESS = 600 * MiB
_KEPT_FREE = 2 * GiB


def fixed_fraction(
    capacity: int, environ: dict[str, str], mark: Mark, folder: Path, look: Callable[[Moment], None]
) -> Race:
    """Every program gets the same share as a hard limit of TensorFlow's allocator: what
    per_process_gpu_memory_fraction is on a GPU."""
    share = capacity // len(PROGRAMS) // MiB
    limits = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(share)}
    return _run({**environ, **limits}, mark, folder, look)


def growth(
    environ: dict[str, str], mark: Mark, folder: Path, look: Callable[[Moment], None]
) -> Race:
    """Every program takes what it needs, with no ceiling."""
    return _run(environ, mark, folder, look)


def why(finish: Finish) -> str:
    """The reason of a program's death."""
    if "ResourceExhaustedError" in finish.errors or "OOM when allocating" in finish.errors:
        return "out of memory"
    if finish.code < 0:
        return signal.Signals(-finish.code).name
    return f"exit code {finish.code}"


def _run(environ: dict[str, str], mark: Mark, folder: Path, look: Callable[[Moment], None]) -> Race:
    entries = [_entry(program, environ) for program in PROGRAMS]
    # All at once, unless that would take the machine down with them.
    room = max(1, (available() - _KEPT_FREE) // _PLAIN_PROCESS)
    at_once = min(len(entries), room)
    return race.run(entries, mark, folder, look, at_once)


def _entry(program: Program, environ: dict[str, str]) -> Entry:
    return Entry(program.name, (sys.executable, str(program.path)), environ)
