"""`sublet down`: end the broker and its nurseries."""

import click

from sublet.cli.terminal_text import say
from sublet.client.connection import connect, connect_or_start
from sublet.home import Home
from sublet.text import plain
from sublet.units import format_bytes
from sublet.wire.messages import Down, Downed

_WAITING = 10
"""The most waiting jobs that are named."""


@click.command("down")
@click.option("--stop", is_flag=True, help="Stop the programs, too.")
def command(stop: bool) -> int:
    """Stop the broker. Programs keep running unless --stop is given; notebooks that hold a lease
    themselves always do.

    The next `sublet` command starts a new broker, which finds them.
    """
    home = Home.find()
    connection = connect(home)
    if connection is None and stop and any(home.runs.glob("*")):
        connection = connect_or_start(home)  # It finds the programs that an earlier one left.
    if connection is None:
        click.echo("no broker is running")
        return 0
    connection.send(Down(stop))
    reply = connection.receive()
    # The broker hangs up when it has ended.
    while connection.receive() is not None:
        pass
    if not isinstance(reply, Downed):
        return 1
    for row in reply.running:
        fate = "stopped" if stop and not row.in_process else f"keeps running (pid {row.pid})"
        say(f"#{row.job} {plain(row.name)}: {fate}, lease {format_bytes(row.ceiling)}")
    for waiting in reply.waiting[:_WAITING]:
        fate = "stays in the queue for the next broker"
        if waiting.foreground:
            fate = "not started" if stop else "keeps waiting in its terminal"
        say(f"#{waiting.job} {plain(waiting.name)}: {fate}")
    if (more := reply.waits - _WAITING) > 0:
        click.echo(f"{more} more stay in the queue")
    click.echo("broker stopped")
    return 0
