"""`sublet explain`: what the size of a job's lease rests on."""

import click
import msgspec

from sublet.cli.numbers import complete, read_number
from sublet.client.connection import conversation
from sublet.home import Home
from sublet.policy.explanation import lines
from sublet.wire.messages import AskExplain, Explained


@click.command("explain", short_help="What the size of a job's lease rests on.")
@click.option("--json", "as_json", is_flag=True, help="The facts, for programs.")
@click.argument("job", shell_complete=complete)
def command(job: str, as_json: bool) -> int:
    """Show what the size of JOB's lease rests on: runs, their peaks, the margin and why."""
    with conversation(Home.find()) as connection:
        connection.send(AskExplain(read_number(job)))
        reply = connection.receive()
    assert isinstance(reply, Explained)
    if as_json:
        document = msgspec.json.encode(reply.explanation)
        click.echo(msgspec.json.format(document, indent=2).decode())
        return 0
    for line in lines(reply.explanation):
        click.echo(line)
    return 0
