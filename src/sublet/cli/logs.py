"""`sublet logs`: what a submitted job has written."""

import sys
import time
from typing import BinaryIO

import click

from sublet.cli import pipe_closed
from sublet.cli.job_numbers import complete, read_number
from sublet.cli.launch import show_cluster
from sublet.client.jobs import Job, listing
from sublet.client.logs import JobLogs, Output, Stream
from sublet.errors import BadRequest
from sublet.home import Home
from sublet.keeper.output_files import Gap
from sublet.units import format_bytes, parse_seconds
from sublet.wire.rows import JobRow


@click.command("logs")
@click.argument("job", metavar="JOB", shell_complete=complete)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job has ended.")
@click.option(
    "-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Show the last N lines."
)
@click.option(
    "--since",
    metavar="SPAN",
    help="Show the last 90s, 10min, 2h, ... (may include up to 10 s more).",
)
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="K",
    help="Show attempt K. Default: the latest.",
)
@click.option(
    "--stdout", "only", flag_value="stdout", help="Show stdout only (jobs submitted with --split)."
)
@click.option(
    "--stderr", "only", flag_value="stderr", help="Show stderr only (jobs submitted with --split)."
)
@click.option(
    "--task", metavar="ROLE:N", help="Of a cluster, show this task alone, such as worker:0."
)
def command(
    job: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    attempt: int | None,
    only: Stream | None,
    task: str | None,
) -> int:
    """Show the output of a submitted job, byte for byte; of a cluster, all tasks line by line.

    \b
    sublet logs 13
    sublet logs -f -n 20 13
    sublet logs --since 10min 13
    sublet logs --task worker:0 13
    """
    number = read_number(job)
    row = Job(number).status()
    if row.gang and not task:
        if attempt is not None or tail is not None or since is not None or only is not None:
            raise BadRequest(
                f"#{number} is a cluster of {len(row.gang)} tasks.",
                "Name one of them: `--task worker:0`.",
            )
        return show_cluster(row.gang, follow)
    known = [row]
    if task:
        number, known = _find_task(row, task), []
    find = Job(number).status
    logs = JobLogs(Home.find().path / "logs", number, lambda: known.pop() if known else find())
    show = logs.follow if follow else logs.read
    moment = None if since is None else time.time() - parse_seconds(since)
    try:
        run = ""
        for output in show(attempt, only, tail, moment):
            if run not in ("", output.attempt_id):
                print(f"sublet: attempt {output.attempt_id.partition('.')[2]}", file=sys.stderr)
            run = output.attempt_id
            _write(output, only)
    except BrokenPipeError:
        return pipe_closed()
    return 0


def _find_task(row: JobRow, task: str) -> int:
    """The job of this task in the same cluster."""
    role, _, index = task.replace(" ", ":").partition(":")
    rows = listing(row.gang).rows if row.gang else ()
    for one in rows:
        if one.role == role and str(one.role_index) == (index or "0"):
            return one.id
    tasks = ", ".join(f"{one.role}:{one.role_index}" for one in rows)
    raise BadRequest(
        f"#{row.id} has no task {task!r}.", f"It has {tasks}." if tasks else "It is no cluster."
    )


def _write(output: Output, only: Stream | None) -> None:
    if isinstance(output.piece, Gap):
        sys.stdout.flush()
        print(f"… {format_bytes(output.piece.size)} left out …", file=sys.stderr, flush=True)
        return
    to_stderr = output.stream == "stderr" and only is None
    stream: BinaryIO = sys.stderr.buffer if to_stderr else sys.stdout.buffer
    stream.write(output.piece)
    stream.flush()
