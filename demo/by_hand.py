"""What people do without Sublet: plain `python program.py`, twenty times.

Owns the words for how a plain program dies of it; what they do by hand is the device's.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from demo import race
from demo.catalogue import PROGRAMS, Program
from demo.devices import Device, Way
from demo.mark import Mark, available
from demo.race import Entry, Finish, Moment, Race
from sublet.units import GiB, MiB

_PLAIN_PROCESS = 600 * MiB
_KEPT_FREE = 2 * GiB
_OUT_OF_MEMORY = (
    "ResourceExhaustedError",
    "OOM when allocating",
    "out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "Dst tensor is not initialized",
)


def run(
    way: Way,
    device: Device,
    environ: dict[str, str],
    mark: Mark,
    folder: Path,
    look: Callable[[Moment], None],
) -> Race:
    """All programs in this way; at once, unless that would take the machine down with them."""
    entries = [_entry(program, {**environ, **way.environ}) for program in PROGRAMS]
    room = max(1, (available() - _KEPT_FREE) // _PLAIN_PROCESS)
    return race.run(entries, device, mark, folder, look, min(len(entries), room))


def why(finish: Finish) -> str:
    """The reason of a program's death."""
    if any(sign in finish.errors for sign in _OUT_OF_MEMORY):
        return "out of memory"
    if finish.code < 0:
        return signal.Signals(-finish.code).name
    return f"exit code {finish.code}"


def _entry(program: Program, environ: dict[str, str]) -> Entry:
    return Entry(program.name, (sys.executable, str(program.path)), environ)
