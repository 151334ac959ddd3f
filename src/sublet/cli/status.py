"""`sublet status`: devices, leases, who waits and why."""

import re
import sys
import time

import click

from sublet.cli.terminal_text import print_json, show
from sublet.client.api import status
from sublet.home import Home

_COLORS = {"warning": "yellow", "error": "red"}


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--on", metavar="CLUSTER", help="Connect to this Ray cluster first, as for `run`.")
def command(as_json: bool, on: str | None) -> int:
    """Show devices, leases and waiting jobs."""
    if on:
        from sublet.backends.ray.cluster import Cluster, read_address

        Cluster(Home.find(), read_address(on)).ensure()
    snapshot = status()
    if as_json:
        print_json(snapshot, indent=2)
        return 0
    from sublet.views import status_table
    from sublet.views.table import width_of

    lines = status_table.draw(snapshot, time.time(), width_of(sys.stdout))
    text = "\n".join(
        click.style(line, fg=_COLORS.get(tone), dim=tone == "dim" or None) for line, tone in lines
    )
    text = re.sub(f"{status_table.LEASED}+", lambda bar: click.style(bar[0], fg="green"), text)
    text = re.sub(f"{status_table.OTHERS}+", lambda bar: click.style(bar[0], fg="yellow"), text)
    show(text)
    return 0
