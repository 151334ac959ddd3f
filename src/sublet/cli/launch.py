"""`sublet launch`: a tf.distribute cluster on this machine."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from sublet.cli import end_by, program_options
from sublet.cli.foreground import run
from sublet.cli.terminal_text import print_json, tell
from sublet.client.cluster_follower import ClusterFollower, title
from sublet.client.cluster_logs import TaskLog
from sublet.client.jobs import act, first_failure, listing
from sublet.client.launch import launch
from sublet.domain.job import PORT_UNSEEN, Role
from sublet.errors import BadRequest, SubletError
from sublet.formats.lease_environment import LOGICAL
from sublet.home import Home
from sublet.text import plain
from sublet.units import parse_seconds
from sublet.wire.rows import JobRow

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_SHOWN = 15
"""Lines of the task that failed first, shown at the end."""


@click.command(
    "launch",
    cls=program_options.ProgramCommand,
    context_settings=program_options.CONTEXT,
)
@click.option("--workers", "--worker", "worker", type=click.IntRange(0), default=0, metavar="N")
@click.option("--chief", type=click.IntRange(0, 1), default=0, metavar="N", help="0 or 1.")
@click.option("--ps", type=click.IntRange(0), default=0, metavar="N", help="Parameter servers.")
@click.option("--evaluator", type=click.IntRange(0, 1), default=0, metavar="N", help="0 or 1.")
@click.option(
    "--logical",
    type=click.IntRange(2),
    metavar="N",
    help="In place of a cluster: one process with N logical devices, for MirroredStrategy.",
)
@click.option(
    "--memory",
    "--mem",
    "memory",
    default="grow",
    metavar="SIZE",
    show_default=True,
    help="The lease of each task, as in `sublet run`.",
)
@program_options.device
@click.option("--cpus", type=click.IntRange(1), metavar="N", help="At most N cores for each task.")
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Start the whole cluster again up to N times after a task has failed.",
)
@click.option("-t", "--time", metavar="SPAN", help="Time limit, such as 90s, 45min or 2h.")
@click.option(
    "--stall",
    metavar="SPAN",
    default="1min",
    show_default=True,
    help="Say which task is missing or hangs after this time, with its Python stacks.",
)
@click.option("--detach", is_flag=True, help="Put it into the queue and return.")
@click.option("-n", "--name", metavar="TEXT", help="Name in `sublet ps` and `sublet status`.")
@program_options.python
@program_options.cold
@program_options.fence
@click.option("--json", "as_json", is_flag=True, help="With --detach: print the numbers as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what the tasks write.")
@program_options.words
def command(
    words: tuple[str, ...],
    worker: int,
    chief: int,
    ps: int,
    evaluator: int,
    logical: int | None,
    memory: str,
    max_restarts: int,
    stall: str,
    detach: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Run PROGRAM as the tasks of a tf.distribute cluster, each under a lease of its own.

    Each task gets its TF_CONFIG. All start together, when there is room for all of them. The first
    failure ends the cluster.

    \b
    sublet launch --workers 2 train.py
    sublet launch --chief 1 --workers 2 --ps 1 train.py --epochs 3
    sublet launch --workers 2 --detach train.py
    sublet launch --logical 2 train.py
    """
    if not words:
        raise BadRequest("There is no program to run.", "See `sublet launch --help`.")
    patience = parse_seconds(stall)
    tasks: dict[Role, int] = {"chief": chief, "worker": worker, "ps": ps, "evaluator": evaluator}
    if logical is not None:
        if any(tasks.values()) or detach or max_restarts or options.pop("time") is not None:
            raise BadRequest(
                "--logical N is one process in the foreground.",
                f"In the queue: `{LOGICAL}={logical} sublet submit …`.",
            )
        return _rehearse(words, logical, memory, quiet, **options)
    options |= {"stall": patience, "retries": max_restarts}
    numbers = launch(words, tasks, memory, detach=detach, **options)
    first = numbers[0]
    if not detach:
        return follow(numbers, quiet)
    if as_json:
        print_json({"id": first, "ids": numbers})
    else:
        click.echo(f"#{first} is in the queue, {len(numbers)} tasks; `sublet logs -f {first}`")
    return 0


def _rehearse(
    words: tuple[str, ...], parts: int, memory: str, quiet: bool, cpus: int | None, **options: Any
) -> int:
    """Run the program like `sublet run`, with so many logical devices."""
    os.environ[LOGICAL] = str(parts)
    return run(words, memory, cpus=None if cpus is None else str(cpus), quiet=quiet, **options)


def follow(numbers: tuple[int, ...], quiet: bool = False, own: bool = True) -> int:
    """Show a cluster until it ends; returns its exit code. If it is our own, Ctrl-C ends it."""
    screen = Screen(listing(numbers).rows, quiet)
    follower = ClusterFollower(numbers, Home.find().logs, screen)
    with _cancelling(numbers if own else ()) as signals:
        rows = follower.run()
    if signals:
        return end_by(signals[0])
    failed = first_failure(rows)
    if failed is None:
        if not quiet:
            _say_unused(rows)
        return 0
    screen.blame(failed, follower.last_lines(failed.id, _SHOWN))
    return failed.code or 1


def show_cluster(numbers: tuple[int, ...], follow_it: bool) -> int:
    """Show what the tasks of a cluster have written, and with `follow_it` all that comes."""
    if follow_it:
        follow(numbers, own=False)
        return 0
    rows = listing(numbers).rows
    screen = Screen(rows)
    for row in rows:
        log = TaskLog(Home.find().logs)
        for text in (*log.follow(row), *log.close()):
            screen.line(row, text)
    for row in rows:
        if row.state == "running" and row.reason:
            screen.warns(f"{title(row)} {row.reason}")
    return 0


@contextlib.contextmanager
def _cancelling(numbers: tuple[int, ...]) -> Iterator[list[int]]:
    """Have the first Ctrl-C cancel the cluster; it goes on until that has ended. The second one
    ends this command at once: the broker ends the cluster then."""
    caught: list[int] = []

    def cancel(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        caught.append(number)
        with contextlib.suppress(SubletError):  # It has ended by itself.
            act("cancel", numbers)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if numbers else ():
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, cancel)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Screen:
    """Writes the lines of all tasks to stdout, each behind the name of its task, and what becomes
    of them to stderr."""

    def __init__(self, rows: tuple[JobRow, ...], quiet: bool = False) -> None:
        names = {row.id: f"{row.role} {row.role_index}" for row in rows}
        width = max(map(len, names.values()))
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._prefixes = {}
        for at, (number, name) in enumerate(names.items()):
            text = f"{name:<{width}} |"
            colour = _COLOURS[at % len(_COLOURS)]
            self._prefixes[number] = click.style(text, fg=colour) if coloured else text
        self._quiet = quiet
        self._waits = ""

    def line(self, row: JobRow, text: str) -> None:
        """Print one line of a task."""
        print(self._prefixes[row.id], text, flush=True)

    def changed(self, before: JobRow | None, now: JobRow) -> None:
        """Say what became of a task, if that is worth a line."""
        if now.state == "finished" and now.code and now.cause not in ("stopped", "cancelled"):
            tell(f"{title(now)} failed: {now.reason}; the cluster ends")
        elif before is not None and now.attempt > before.attempt and now.state == "waiting":
            if "with its cluster" not in now.reason:
                tell(f"{title(now)}: {now.reason or 'could not be started'}; all start again")
        elif now.state == "waiting" and not self._quiet and now.reason not in ("", self._waits):
            self._waits = now.reason
            tell(f"waiting: {now.reason}")
        elif now.state == "running" and now.how not in ("", "warm") and not self._quiet:
            tell(f"{title(now)} started {now.how}")

    def warns(self, sentence: str) -> None:
        """Say what is wrong with the cluster."""
        tell(sentence)

    def blame(self, failed: JobRow, lines: list[str]) -> None:
        """Say which task failed first, and what it wrote last."""
        if failed.cause in ("stopped", "cancelled"):
            tell(f"the cluster was ended: {failed.reason}")
            return
        tell(f"{title(failed)} failed first: {failed.reason}")
        for text in lines:
            print(f"  {plain(text)}", file=sys.stderr)
        sys.stderr.flush()


def _say_unused(rows: list[JobRow]) -> None:
    """Say it if tasks did not take part in the cluster."""
    unused = [row for row in rows if PORT_UNSEEN in row.reason]
    if len(unused) == sum(row.port is not None for row in rows):
        tell(
            "no task was seen to open its port: it seems that the program does not use TF_CONFIG, "
            "and that each task ran alone"
        )
    elif unused:
        tell(f"not seen to open a port, and so to take part: {', '.join(map(title, unused))}")
