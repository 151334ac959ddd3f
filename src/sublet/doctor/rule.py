"""What a rule is: one problem, its sentence and its fix, and the checks that see it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from sublet.doctor.finding import Severity
from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.wire.messages import Snapshot
from sublet.wire.rows import JobRow


class Seen(NamedTuple):
    """Where a check has seen the problem, and the words for the gaps in the rule's sentence."""

    line: int | None = None
    words: tuple[str, ...] = ()
    text: str = ""
    """What is shown for it, if that is no line of a file: a variable with its value."""


@dataclass(frozen=True)
class Rule:
    """One problem. Checks are pure: the same program, log or machine gives the same answer."""

    id: str
    severity: Severity
    sentence: str
    """What is wrong. Words of a check fill gaps such as `{the variable}`."""
    fix: str
    """What to change, in a line. The same words fill gaps by their place: `{0}`."""
    log: tuple[str, ...] = ()
    """Patterns of lines that say so. Groups fill the gaps of the sentence."""
    code: Callable[[Program, Machine], Iterable[Seen]] | None = None
    machine: Callable[[Machine], Iterable[Seen]] | None = None
    broker: Callable[[Snapshot], Iterable[Seen]] | None = None
    job: Callable[[JobRow], Iterable[Seen]] | None = None
    fatal: bool = False
    """Whether it ends a program at once, without an exception."""

    def say(self, words: tuple[str, ...]) -> tuple[str, str]:
        """The sentence and the fix with these words in their gaps."""
        return _fill(self.sentence, words), _fill(self.fix, words)


_GAP = re.compile(r"( \()?\{([^{}]*)\}(?(1)\))")


def _fill(text: str, words: tuple[str, ...]) -> str:
    """The text with words in its gaps: `{what}` takes the next one, `{0}` the first. A gap without
    a word says what belongs there, and goes if it is in brackets."""
    left = iter(words)

    def word(gap: re.Match[str]) -> str:
        number = int(gap[2]) if gap[2].isdigit() else None
        known = words[number : number + 1] if number is not None else list(islice(left, 1))
        found = known[0] if known else "N" if number is not None else gap[2]
        if gap[1]:
            return f" ({found})" if known else ""
        return found

    return _GAP.sub(word, text)
