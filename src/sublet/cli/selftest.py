"""`sublet selftest`: does Sublet keep its promises on this machine?"""

import shutil
import sys
import textwrap
import time
from pathlib import Path

import click

from sublet.cli.completion import complete_files
from sublet.cli.terminal_text import print_json, say, tell
from sublet.client.api import status
from sublet.text import plain
from sublet.tools.selftest import report as reports
from sublet.tools.selftest.checks import Check, check_all

_COLORS = {"pass": "green", "fail": "red", "not here": "yellow"}
_NAME, _STATE = 14, 9


@click.command("selftest")
@click.option(
    "--device", metavar="NAME", help="Device to test. Default: the GPU with most free memory."
)
@click.option(
    "--report",
    default="sublet-selftest.json",
    show_default=True,
    metavar="FILE",
    shell_complete=complete_files,
    help="File for the report. It contains no paths, user names or environment.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(device: str | None, report: str, as_json: bool) -> int:
    """Run small programs under leases for about a minute, and show what held and what did not.

    Exits with 0 if nothing failed. What this machine does not have is reported as "not here".
    """
    began, checks = time.monotonic(), []
    progress = _Progress()
    for check in check_all(device, progress.begins):
        progress.clear()
        checks.append(check)
        if not as_json:
            _show(check)
    progress.clear()
    made = reports.make(status(), checks, time.monotonic() - began)
    if as_json:
        print_json(made, indent=2)
    try:
        reports.write(made, Path(report))
        tell(f"{report} has all of this, and nothing that says whose machine it is")
    except OSError as error:
        tell(f"the report {report} could not be written: {error.strerror}")
    if not made.good:
        tell("something does not hold here: please send the report to the project")
    return 0 if made.good else 1


class _Progress:
    """Says on stderr what is being checked, on a terminal in a line that goes away again."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def begins(self, what: str) -> None:
        self.clear()
        text = f"sublet: checking {plain(what)} …"
        print(text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show(check: Check) -> None:
    """A check as a row that fits the terminal, and what to do in lines of their own."""
    width = max(60, min(shutil.get_terminal_size().columns, 104)) - _NAME - _STATE - 1
    lines = textwrap.wrap(plain(check.seen), width) or [""]
    if check.advice:
        lines += textwrap.wrap(f"→ {plain(check.advice)}", width)
    state = click.style(f"{check.state:<{_STATE}}", fg=_COLORS[check.state])
    click.echo(f"{check.name:<{_NAME}}{state}{lines[0]}")
    for line in lines[1:]:
        say(" " * (_NAME + _STATE) + line)
