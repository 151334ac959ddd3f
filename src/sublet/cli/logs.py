"""`sublet logs`: what a submitted job has written."""

import sys
import time
from typing import BinaryIO

import click

from sublet.cli import pipe_closed
from sublet.cli.job_numbers import complete, read_number
from sublet.client.jobs import Job
from sublet.client.logs import JobLogs, Output, Stream
from sublet.home import Home
from sublet.keeper.output_files import Gap
from sublet.units import format_bytes, parse_seconds


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
def command(
    job: str,
    follow: bool,
    tail: int | None,
    since: str | None,
    attempt: int | None,
    only: Stream | None,
) -> int:
    """Show the output of a submitted job, byte for byte.

    \b
    sublet logs 13
    sublet logs -f -n 20 13
    sublet logs --since 10min 13
    """
    number = read_number(job)
    logs = JobLogs(Home.find().path / "logs", number, Job(number).status)
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


def _write(output: Output, only: Stream | None) -> None:
    if isinstance(output.piece, Gap):
        sys.stdout.flush()
        print(f"… {format_bytes(output.piece.size)} left out …", file=sys.stderr, flush=True)
        return
    to_stderr = output.stream == "stderr" and only is None
    stream: BinaryIO = sys.stderr.buffer if to_stderr else sys.stdout.buffer
    stream.write(output.piece)
    stream.flush()
