"""`sublet doctor`: what is wrong with a program, a log, a job or this machine, and the fix."""

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sublet.cli import job_numbers
from sublet.cli.completion import complete_files
from sublet.cli.terminal_text import print_json, say, show
from sublet.errors import BadRequest
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.doctor.finding import Finding

_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    jobs = job_numbers.complete(context, parameter, incomplete)
    return [*jobs, *complete_files(context, parameter, incomplete)]


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("subject", metavar="[SCRIPT | LOG | JOB]", required=False, shell_complete=_complete)
def command(subject: str | None, as_json: bool) -> int:
    """Say what is wrong with a program, a log or a job, and how to fix it.

    Reads a script or notebook without running it, a log (`-` for stdin), or the program, log and
    verdict of a job. Without an argument: this machine and the broker. Exits with 1 if it finds
    something, with 0 if not.

    \b
    sublet doctor train.py
    sublet doctor train.log
    sublet doctor 13
    python train.py 2>&1 | sublet doctor -
    """
    from sublet.doctor import examination

    if subject is None:
        findings = examination.of_machine()
    elif subject == "-":
        findings = examination.of_log("stdin", sys.stdin.buffer.read())
    elif os.path.exists(subject):
        findings = examination.of_file(subject)
    elif _looks_like_a_file(subject):
        raise BadRequest(f"{subject}: there is no such file.", "Name a script, a log, or a job.")
    else:
        findings = examination.of_job(job_numbers.read_number(subject))
    if as_json:
        print_json({"findings": findings})
    else:
        _show(findings, subject)
    return 1 if any(one.counts for one in findings) else 0


def _looks_like_a_file(subject: str) -> bool:
    return "/" in subject or subject.endswith((".py", ".ipynb", ".log", ".txt", ".err", ".out"))


def _show(findings: "list[Finding]", subject: str | None) -> None:
    width = max(60, min(shutil.get_terminal_size().columns, 100)) if sys.stdout.isatty() else 100
    for one in findings:
        for line in lines(one, width):
            show(line)
    if not any(one.counts for one in findings):
        say(f"nothing is wrong with {subject or 'this machine'}, as far as is known")


def lines(one: "Finding", width: int) -> list[str]:
    """A finding as text: the sentence, what it was seen by, the fix."""
    place = f"{plain(one.place)}: " if one.place else ""
    head = f"{place}{one.severity}: {plain(one.sentence)} [{one.rule}]"
    text = textwrap.wrap(head, width, subsequent_indent="    ", **_WHOLE)
    kind = click.style(one.severity, fg=_COLORS[one.severity])
    text[0] = text[0].replace(f"{one.severity}:", f"{kind}:", 1)
    if one.seen:
        times = f"  ({one.times} times)" if one.times > 1 else ""
        text.append(f"    | {plain(one.seen)}{times}")
    fix = textwrap.wrap(
        f"fix: {plain(one.fix)}",
        width - 4,
        initial_indent="    ",
        subsequent_indent="         ",
        **_WHOLE,
    )
    return [*text, *fix]
