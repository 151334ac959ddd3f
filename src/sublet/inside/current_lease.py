"""The lease of this process: found in its environment, imposed on it, and forgotten."""

from __future__ import annotations

import os
import sys

from ..formats import lease_environment
from ..formats.lease import VARIABLE, LeaseTerms

_ENFORCING = (
    lease_environment.USE_BFC,
    lease_environment.BFC_LIMIT,
    lease_environment.VISIBLE,
    lease_environment.ORDER,
    lease_environment.GROWTH,
    lease_environment.SMALLEST_GPU,
)
"""Always set anew: TensorFlow and CUDA read the C library's environment, which native code may have
changed without `os.environ` showing it."""

_seen: str | None = None
_current: LeaseTerms | None = None


def current() -> LeaseTerms | None:
    """The lease of this process; None without one, or with one that cannot be read.

    Looked up at each call, because a warm worker gets its lease only after the fork. Once seen it
    stays, even when the program clears its environment.
    """
    global _seen, _current
    text = os.environ.get(VARIABLE)
    if text is not None and text != _seen:
        _seen = text
        try:
            _current = LeaseTerms.from_json(text) if text else _current
        except ValueError as wrong:
            say(f"{VARIABLE} cannot be read ({wrong}): this program runs without a lease")
    return _current


def forget() -> None:
    """This process holds no lease any more; its environment names none."""
    global _seen, _current
    _seen = _current = None


def impose(lease: LeaseTerms) -> None:
    """Give this process the environment of the lease, and say which settings it replaced."""
    wanted, notes = lease_environment.leased_environment(lease, os.environ)
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if name in _ENFORCING or os.environ.get(name) != value:
            os.environ[name] = value
    if lease.on_gpu and lease_environment.GPU_ALLOCATOR not in wanted:
        os.unsetenv(lease_environment.GPU_ALLOCATOR)
    for note in notes:
        say(note)


_said: set[str] = set()


def say(line: str) -> None:
    """Write one line to the program's stderr, once. Without a usable stderr nothing happens."""
    if line in _said:
        return
    _said.add(line)
    try:
        sys.stderr.write(f"sublet: {line}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass
