"""`sublet ps`: the queue."""

import time

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.jobtable import draw
from sublet.cli.terminal_text import print_json
from sublet.client.jobs import listing


@click.command("ps", short_help="Jobs: what runs, what waits and why, what ended.")
@click.option("-a", "--all", "everything", is_flag=True, help="All that wait, and 1000 that ended.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.argument("jobs", nargs=-1, metavar="[JOBS]...", shell_complete=complete)
def command(everything: bool, as_json: bool, jobs: tuple[str, ...]) -> int:
    """Show jobs: what runs, what waits and why, what ended."""
    live, finished = (10**9, 1000) if everything else (20, 5)
    found = listing(read_numbers(jobs), live, finished)
    if as_json:
        print_json(found)
    else:
        click.echo(draw(found, time.time()))
    return 0
