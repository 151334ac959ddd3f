"""How an engine ended: what to say of it, and whether what it ran may be why.

Owns the wording, and telling apart who sent a signal that no program can catch. Whom to blame in
the end is `blame`'s.
"""

import signal
from collections.abc import Iterable
from typing import NamedTuple

from sublet.domain.job import Outcome
from sublet.serving.control.blame import Key

_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Somebody has ended it: no model is why."""
_KERNEL = "/proc/vmstat"


class End(NamedTuple):
    """How it was."""

    how: str
    """The engine …"""
    advice: str = ""
    own: bool = True
    """Whether something that it ran may be why."""

    def text(self, loading: Iterable[Key], running: Iterable[Key]) -> str:
        """In the server's log; `loading` and `running` are what it was busy with."""
        what = [f" while it loaded {name} {number}" for name, number in loading]
        what += [f" while it ran {name} {number}" for name, number in running]
        return f"The engine {self.how}{','.join(what)}.{self.advice}"


def is_stopped(pid: int | None) -> bool:
    """Whether somebody has stopped this process (SIGSTOP), or a debugger has."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory, since the machine was started;
    None if it does not say."""
    try:
        with open(_KERNEL, encoding="ascii") as file:
            told = dict(line.split() for line in file)
        return int(told["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def judge(told: Outcome, before: int | None, after: int | None) -> End:
    """`before` and `after` are the kernel's kills when the engine began, and when it had ended."""
    if told.cause == "exited":
        return End(f"ended with code {told.code}")
    if told.cause != "signalled":
        return End(f"ended ({told.cause})", own=told.cause == "lease exceeded")
    number = told.code - 128
    if number != signal.SIGKILL:
        return End(f"ended ({_name(number)})", own=number not in _FROM_OUTSIDE)
    advice = (
        " See dmesg; if it was that, have the machine do less at a time, or serve with less: "
        "lower --memory."
    )
    if before is None or after is None:
        return End("was killed (signal 9), perhaps by the kernel for lack of memory", advice, False)
    if before == after:
        return End("was killed (signal 9) by somebody", own=False)
    return End("was killed (signal 9), it seems by the kernel for lack of memory", advice)


def _name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
