"""Reads what the doctor is shown, and applies the rules to it."""

import ast
import contextlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from sublet.doctor import notebooks
from sublet.doctor.finding import Finding, in_order
from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.rules import all_rules
from sublet.wire.messages import Snapshot
from sublet.wire.rows import JobRow

_SHOWN = 160
"""So much is shown of a line."""


class NotPython(Exception):
    """The text is no program: a finding says why."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def check_script(path: str, text: str, machine: Machine) -> list[Finding]:
    """What is wrong with a script or a notebook."""
    try:
        program = parse(path, text)
    except NotPython as wrong:
        return [wrong.finding]
    return check_program(program, machine)


def check_program(program: Program, machine: Machine) -> list[Finding]:
    """What is wrong with a program; of each rule, one finding in a line."""
    found = []
    for rule in all_rules():
        if rule.code is not None:
            with contextlib.suppress(RecursionError):  # Code that nobody has written by hand.
                seen = {one.line: one for one in rule.code(program, machine)}
                found += [_in_code(rule, program, one) for one in seen.values()]
    return in_order(found)


def check_log(path: str, text: str, before: int = 0) -> list[Finding]:
    """What a log says; of each rule, the first line. `before`: lines that were left out."""
    return in_order([one for rule in all_rules() for one in _in_log(rule, path, text, before)])


def check_machine(machine: Machine) -> list[Finding]:
    """What is wrong with the environment."""
    found = []
    for rule in all_rules():
        if rule.machine is not None:
            found += [_finding(rule, one, seen=one.text) for one in rule.machine(machine)]
    return in_order(found)


def found_in(kind: Literal["broker", "job"], state: Snapshot | JobRow) -> list[Finding]:
    """What is wrong with the state of the broker, or with how a job has ended."""
    found = []
    for rule in all_rules():
        check: Callable[..., Iterable[Seen]] | None = getattr(rule, kind)
        if check is not None:
            found += [_finding(rule, one, seen=one.text) for one in check(state)]
    return in_order(found)


def parse(path: str, text: str) -> Program:
    """The program of a script or a notebook. Raises NotPython."""
    cells: tuple[tuple[int, int], ...] = ()
    try:
        if path.endswith(".ipynb"):
            text, cells = notebooks.read(text)
        with warnings.catch_warnings(action="ignore"):
            return Program(path, text, ast.parse(text), cells)
    except SyntaxError as error:
        raise NotPython(_syntax_error(path, error, cells)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotPython(
            Finding(
                "syntax-error",
                "error",
                f"This cannot be read: {error}.",
                "Name a Python script, a notebook or a log.",
                path,
            )
        ) from error


def _syntax_error(path: str, error: SyntaxError, cells: tuple[tuple[int, int], ...]) -> Finding:
    cell, line = _place(cells, error.lineno)
    return Finding(
        "syntax-error",
        "error",
        f"Python cannot read the program: {error.msg.rstrip('.?')}.",
        "Correct this line or the one before it.",
        path,
        line,
        cell,
        (error.text or "").strip()[:_SHOWN],
    )


def _in_code(rule: Rule, program: Program, seen: Seen) -> Finding:
    lines = program.text.splitlines()
    at = seen.line or 1
    text = lines[at - 1].strip()[:_SHOWN] if at <= len(lines) else ""
    cell, line = _place(program.cells, at)
    return _finding(rule, seen, program.path, line, cell, text)


def _in_log(rule: Rule, path: str, text: str, before: int) -> Iterator[Finding]:
    for pattern in rule.log:
        if (match := re.search(pattern, text)) is None:
            continue
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.start())
        line = text[start : end if end >= 0 else None].strip()
        words = tuple(group for group in match.groups() if group)
        number = before + text.count("\n", 0, match.start()) + 1
        times = sum(1 for _ in re.finditer(pattern, text))
        yield _finding(rule, Seen(number, words), path, number, None, line[:_SHOWN], times)
        return


def _finding(
    rule: Rule,
    one: Seen,
    file: str = "",
    line: int | None = None,
    cell: int | None = None,
    seen: str = "",
    times: int = 1,
) -> Finding:
    sentence, fix = rule.say(one.words)
    return Finding(rule.id, rule.severity, sentence, fix, file, line, cell, seen, times)


def _place(cells: tuple[tuple[int, int], ...], line: int | None) -> tuple[int | None, int | None]:
    if not cells or line is None:
        return None, line
    return cells[min(line, len(cells)) - 1]
