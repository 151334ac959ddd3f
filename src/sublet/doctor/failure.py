"""What is said of a program that has failed under `sublet run`: only what explains this failure."""

import os
import signal

from msgspec.structs import replace

from sublet.doctor.finding import Finding
from sublet.doctor.machine import Machine
from sublet.doctor.reading import NotPython, check_log, check_machine, check_program, parse
from sublet.doctor.rules import all_rules
from sublet.domain.job import Outcome, UncaughtError

_LONGEST = 1 << 20
"""Larger scripts are not read for this."""


def explain(outcome: Outcome, script: str) -> list[Finding]:
    """What the exception that ended the program means; if there was none, what in its script or its
    environment ends programs so. Empty if nothing is known, or if the verdict says it all."""
    if outcome.by_user or not outcome.code or outcome.cause not in ("exited", "signalled"):
        return []
    if outcome.cause == "exited" and outcome.error is not None:
        return _meaning(outcome.error, script)[:1]
    if outcome.cause == "exited" or outcome.code == 128 + signal.SIGABRT:
        return _aborts(script)[:1]
    return []


def _meaning(error: UncaughtError, script: str) -> list[Finding]:
    """What an exception means; in the words of the script, where the script shows the same."""
    said = [one for one in check_log("", error.text) if one.counts]
    rules = {one.rule for one in said}
    shown = [one for one in _in_script(script) if one.rule in rules] if rules else []
    return [
        *(one for one in shown if one.line == error.line or error.line is None),
        *(replace(one, file=error.file, line=error.line) for one in said),
    ]


def _aborts(script: str) -> list[Finding]:
    """What aborts, in the environment or in the script."""
    fatal = {rule.id for rule in all_rules() if rule.fatal}
    found = [*check_machine(Machine(environ=dict(os.environ))), *_in_script(script)]
    return [one for one in found if one.rule in fatal]


def _in_script(script: str) -> list[Finding]:
    try:
        if not script or os.path.getsize(script) > _LONGEST:
            return []
        with open(script, encoding="utf-8", errors="replace") as file:
            return check_program(parse(script, file.read()), Machine())
    except (OSError, NotPython):
        return []
