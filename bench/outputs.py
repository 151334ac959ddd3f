"""What a program printed, and where another run of it printed something else.

Two runs of the same program differ in times, addresses, the names of temporary files and numbers
that nothing seeds. What differs between two plain runs is noise by definition; only what differs
beyond it counts. Lines are compared as a terminal would show them, without what was overwritten.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_OVERWRITTEN = re.compile(r"[^\n]*(?:\r(?!\n)|\x08)")
_NUMBER = re.compile(
    r"0x[0-9a-fA-F]+|(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?:ms|us|µs|s|min)?(?![\w])"
    r"|\b(?:nan|inf)\b|\d+"
)
_TIME = re.compile(r".*\d(?:ms|us|µs|s|min)$|0x.*")
"""Times and addresses: never compared."""
_RANDOM_NAME = re.compile(r"(tmp|_file)(?=[a-z0-9_]{8}\b)[a-z0-9_]{8}")
_AFTER_THE_END = re.compile(
    r"^.*finalizing GeneratorDataset iterator: .*Python interpreter state is not initialized.*\n"
    r"(?:.*\[\[\{\{node PyFunc\}\}\]\].*\n?)?",
    re.MULTILINE,
)
"""What TensorFlow's static destructors log when the interpreter is gone. A warm program leaves
before they run: docs/compatibility.md says so."""
LOG_HEAD = re.compile(r"^(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF]|[IWEF]\d{4} [\d:.]+ +\d+) ")
"""What a line of TensorFlow's own log begins with."""


@dataclass(frozen=True)
class Line:
    """One line: its words with # for every number, and the numbers."""

    words: str
    numbers: tuple[str, ...]

    def __str__(self) -> str:
        numbers = iter(self.numbers)
        return re.sub("#", lambda _: next(numbers, "#"), self.words)


@dataclass(frozen=True)
class Difference:
    """Lines of the first output, from `first` up to `last`, that the other does not have so."""

    first: int
    last: int
    was: tuple[Line, ...]
    now: tuple[Line, ...]

    @property
    def numbers(self) -> frozenset[int]:
        """Which numbers differ, in a line with the same words; empty if the words differ."""
        if len(self.was) != 1 or len(self.now) != 1 or self.was[0].words != self.now[0].words:
            return frozenset()
        pairs = zip(self.was[0].numbers, self.now[0].numbers, strict=True)
        return frozenset(at for at, (was, now) in enumerate(pairs) if was != now)

    def __str__(self) -> str:
        was = " / ".join(map(str, self.was[:3])) or "nothing"
        now = " / ".join(map(str, self.now[:3])) or "nothing"
        return f"line {self.first + 1}: {was[:200]!r} is {now[:200]!r}"


def lines(text: str, dropped: frozenset[str] = frozenset()) -> list[Line]:
    """The lines that are left on a terminal; without those of TensorFlow's log in `dropped`."""
    shown = _AFTER_THE_END.sub("", _OVERWRITTEN.sub("", _ANSI.sub("", text)))
    found = []
    for line in shown.splitlines():
        said = LOG_HEAD.sub("", line).strip()
        if said and said not in dropped:
            found.append(_parsed(_RANDOM_NAME.sub(r"\1_", " ".join(said.split()))))
    return found


def _parsed(line: str) -> Line:
    numbers = tuple("" if _TIME.match(it) else it for it in _NUMBER.findall(line))
    # Padding follows the width of numbers.
    words = re.sub(r"\s*#\s*", " # ", _NUMBER.sub("#", line.replace("#", "♯")))
    return Line(words.strip(), numbers)


def differences(was: Sequence[Line], now: Sequence[Line]) -> list[Difference]:
    """Where the second output is not the first."""
    found = []
    matcher = SequenceMatcher(None, [it.words for it in was], [it.words for it in now], False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind != "equal":
            found.append(Difference(first, last, tuple(was[first:last]), tuple(now[start:end])))
            continue
        for at in range(last - first):
            one, other = was[first + at], now[start + at]
            if one.numbers != other.numbers:
                found.append(Difference(first + at, first + at + 1, (one,), (other,)))
    return found


def beyond(found: Iterable[Difference], noise: Sequence[Difference]) -> list[Difference]:
    """The differences that noise does not explain; none if only the order of lines differs."""
    left = [one for one in found if not any(_explains(it, one) for it in noise)]
    left = [one for one in left if not _numbers_explained(one, noise)]
    was = Counter(line.words for one in left for line in one.was)
    now = Counter(line.words for one in left for line in one.now)
    reordered = was == now and any(not one.numbers for one in left)
    return [] if reordered else left


def _explains(noise: Difference, one: Difference) -> bool:
    """Lines that come and go between plain runs."""
    return not noise.numbers and noise.first <= one.last and one.first <= noise.last


def _numbers_explained(one: Difference, noise: Sequence[Difference]) -> bool:
    """Numbers that differ between plain runs; and fractions beside such ones, in the same line."""
    if not one.numbers:
        return False
    free: set[int] = set()
    for it in noise:
        if it.numbers and it.first == one.first:
            free |= it.numbers
            numbers = it.was[0].numbers
            if any("." in numbers[at] for at in it.numbers):
                free |= {at for at, number in enumerate(numbers) if "." in number}
    return one.numbers <= free
