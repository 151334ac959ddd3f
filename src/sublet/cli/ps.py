"""`sublet ps`: lists jobs, or shows all about one."""

import sys
import time

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.terminal_text import print_json, say
from sublet.client.jobs import listing, with_gangs
from sublet.views.job_table import details, draw
from sublet.views.table import width_of

_LIVE, _FINISHED = 20, 5
"""The most lines of each kind, unless all are asked for."""
_ALL = 10**9


@click.command("ps")
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Show all live jobs and the last 1000 that finished.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("jobs", nargs=-1, metavar="[JOBS]...", shell_complete=complete)
def command(everything: bool, as_json: bool, jobs: tuple[str, ...]) -> int:
    """List running, waiting and finished jobs. With one JOB, show everything about it, or all tasks
    of its cluster."""
    numbers = read_numbers(jobs)
    if len(numbers) == 1:
        numbers = with_gangs(numbers)
    live, finished = (_ALL, 1000) if everything else (_LIVE, _FINISHED)
    if as_json or everything or numbers:
        found = listing(numbers, live, finished)
    else:
        # More than fit: jobs of an array share a line, and one too many tells that there are more.
        found = listing((), live * 10, finished * 10)
    width, now = width_of(sys.stdout), time.time()
    if as_json:
        counts = {name: getattr(found, name) for name in ("running", "waiting", "left_out")}
        print_json({"jobs": found.rows, **counts})
    elif len(numbers) == 1:
        say(details(found.rows[0], now, width))
    elif numbers:
        say(draw(found, now, width, _ALL, _ALL))
    else:
        say(draw(found, now, width, live, finished))
    return 0
