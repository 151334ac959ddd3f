"""What a rule has found, and where."""

from typing import Literal

from msgspec import Struct

Severity = Literal["error", "warning", "note"]
"""An error ends or hangs a program, or its setting has no effect. A warning costs memory or time.
A note explains a line that looks worse than it is, and does not count as a finding."""
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Struct, frozen=True):
    """One thing that is wrong."""

    rule: str
    severity: Severity
    sentence: str
    fix: str
    file: str = ""
    """The script or log; empty for the environment and for the state of a job or the broker."""
    line: int | None = None
    cell: int | None = None
    """The cell of a notebook, counted from one; `line` is counted in it."""
    seen: str = ""
    """The line of code or log, the variable, or whatever else it was seen by."""
    times: int = 1
    """How often it was seen there."""

    @property
    def counts(self) -> bool:
        """Whether something has to be done about it."""
        return self.severity != "note"

    @property
    def place(self) -> str:
        """Where it was seen, as compilers write it; empty if that is no file."""
        if not self.file:
            return ""
        cell = f" cell {self.cell}" if self.cell else ""
        line = "" if self.line is None else f" line {self.line}" if cell else f":{self.line}"
        return f"{self.file}{cell}{line}"


def in_order(findings: list[Finding]) -> list[Finding]:
    """The worst first, then in the order of their lines."""
    return sorted(
        findings, key=lambda one: (ORDER.index(one.severity), one.cell or 0, one.line or 0)
    )
