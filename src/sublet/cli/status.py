"""`sublet status`: devices, leases, who waits and why."""

import sys
import time

import click

from sublet.cli.terminal_text import print_json
from sublet.client.api import status


@click.command("status", short_help="Devices, leases, who holds what, who waits and why.")
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs.")
def command(as_json: bool) -> int:
    """Show devices, leases, who holds what, who waits and why."""
    snapshot = status()
    if as_json:
        print_json(snapshot, indent=2)
        return 0
    from sublet.cli.tables import draw

    draw(snapshot, time.time(), sys.stdout)
    return 0
