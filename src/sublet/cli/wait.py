"""`sublet wait`: wait until jobs have finished."""

import sys

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.terminal_text import print_json, say
from sublet.client import jobs as queue
from sublet.units import parse_seconds
from sublet.views.job_table import sentence
from sublet.wire.rows import JobRow


@click.command("wait")
@click.option(
    "--timeout",
    metavar="SPAN",
    help="Give up after this time (90s, 45min, 2h, ...) and exit with 124.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOBS...", shell_complete=complete)
def command(timeout: str | None, as_json: bool, jobs: tuple[str, ...]) -> int:
    """Wait until JOBS have finished. Exits with the first exit code that is not 0.

    A task of a cluster stands for the cluster.
    """
    numbers = queue.with_gangs(read_numbers(jobs))
    seconds = None if timeout is None else parse_seconds(timeout)

    def show(row: JobRow) -> None:
        if row.state == "finished" and not as_json:
            say(sentence(row))
            sys.stdout.flush()

    try:
        rows = queue.wait(numbers, seconds, show)
    except TimeoutError as late:
        print(f"sublet: {late}; it keeps running", file=sys.stderr)
        return 124
    if as_json:
        print_json({"jobs": rows})
    return queue.exit_code(rows)
