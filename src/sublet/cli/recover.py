"""`sublet recover`: set a damaged ledger aside and save what can be read."""

import click

from sublet.broker.lock import only_broker
from sublet.broker.recovery import recover
from sublet.home import Home


@click.command("recover")
def command() -> int:
    """Repair a damaged job database. Nothing is deleted.

    The damaged file is renamed, and a new one gets everything that could be read. Running programs
    keep their leases.
    """
    home = Home.find()
    home.make()
    with only_broker(home):
        done = recover(home)
    if done is None:
        click.echo("the job database is sound; nothing was changed")
        return 0
    if done.aside.exists():
        click.echo(f"the damaged file is now {done.aside}")
    click.echo(
        f"saved: {done.jobs} jobs, {done.peaks} measurements; "
        f"{done.running} programs were running and keep their leases"
    )
    if done.missing:
        click.echo(
            f"missing: {done.missing} commits that were on disk are not in the file any more; jobs "
            "that were accepted with them are lost: submit them again"
        )
    return 0
