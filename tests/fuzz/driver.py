"""Makes inputs, feeds them to a target, and keeps those that it does not take well.

Input number N of a seed is always the same, whatever came before it. So a fault that does not show
with its input alone is found again with the same seed.
"""

import hashlib
import importlib
import pkgutil
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from fuzz import targets

CORPUS = Path(__file__).parent / "corpus"
PATIENCE = 60.0
"""Seconds that one input may take, on a machine under any load: more than that is a hang."""

Random = random.Random


class Target(NamedTuple):
    """Something that reads foreign bytes.

    `feed` returns whatever the input is: what it raises is a fault. The main thread calls it.
    """

    feed: Callable[[bytes], None]
    seeds: Sequence[bytes] = ()
    """Good inputs, to be damaged."""
    make: Callable[[Random], bytes] | None = None
    """Makes up inputs of its own; used in turn with damaged seeds."""
    close: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None
    """Called at the end: raises if something was left behind."""


class Fault(Exception):
    """An input that a target does not take well."""

    def __init__(self, name: str, data: bytes, number: int | None, seed: int) -> None:
        self.data = data
        where = "of the corpus" if number is None else f"{number} of seed {seed}"
        super().__init__(f"{name}: input {where}, {len(data)} bytes: {data[:200]!r}")


def names() -> list[str]:
    """The names of all targets."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def run(name: str, seconds: float, seed: int = 0, most: int | None = None) -> int:
    """Feed the corpus, then inputs for so many seconds; how many. Raises Fault."""
    found = importlib.import_module(f"fuzz.targets.{name}").target()
    assert isinstance(found, Target)
    number = 0
    try:
        for data in corpus(name):
            _feed(found, name, data, None, seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until and (most is None or number < most):
            data = make(found, random.Random(f"{seed} {number}"))
            _feed(found, name, data, number, seed)
            number += 1
        found.check()
    finally:
        found.close()
    return number


def corpus(name: str) -> list[bytes]:
    """Inputs that found a fault before."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def keep(name: str, data: bytes) -> Path:
    """Add an input to the corpus."""
    path = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def make(target: Target, chance: Random) -> bytes:
    """Make one input."""
    if target.make is not None and (not target.seeds or chance.random() < 0.5):
        data = target.make(chance)
        return data if chance.random() < 0.5 else damage(data, target.seeds, chance)
    return damage(chance.choice([*target.seeds, b""]), target.seeds, chance)


_ODD = (0, 1, 2, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63)


def damage(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    """The same with some bytes changed, added, removed, repeated or exchanged."""
    raw = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5, 8))):
        at = chance.randrange(len(raw) + 1)
        size = chance.choice((1, 1, 2, 4, 8, 16, 64))
        match chance.randrange(8):
            case 0 if at < len(raw):
                raw[at] ^= 1 << chance.randrange(8)
            case 1:
                raw[at : at + size] = chance.randbytes(size)
            case 2:
                del raw[at : at + size]
            case 3:
                raw[at:at] = chance.randbytes(size)
            case 4:
                raw[at:at] = raw[at : at + size] * chance.choice((1, 2, 9))
            case 5:
                width = chance.choice((1, 2, 4, 8))
                odd = chance.choice(_ODD) & ((1 << 8 * width) - 1)
                order = chance.choice(("little", "big"))
                raw[at : at + width] = odd.to_bytes(width, "little" if order == "little" else "big")
            case 6:
                del raw[at:]
            case _ if others:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                raw[at:] = other[start:]
    return bytes(raw)


def _feed(target: Target, name: str, data: bytes, number: int | None, seed: int) -> None:
    try:
        with _bounded():
            target.feed(data)
    except Exception as wrong:
        raise Fault(name, data, number, seed) from wrong


@contextmanager
def _bounded() -> Iterator[None]:
    def late(_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {PATIENCE:g} s")

    before = signal.signal(signal.SIGALRM, late)
    # Whoever bounds the whole test by the same timer has it back afterwards.
    left, _ = signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)))
