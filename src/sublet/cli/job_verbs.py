"""The verbs that do something to jobs, all alike."""

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.terminal_text import say, say_json
from sublet.client.jobs import act
from sublet.text import plain
from sublet.wire.messages import Verb


def verb(name: Verb, does: str) -> click.Command:
    """The command of this name."""

    def run(jobs: tuple[str, ...], as_json: bool) -> int:
        numbers = read_numbers(jobs)
        said = act(name, numbers)
        if as_json:
            say_json({"ids": numbers, "said": said})
        else:
            say("\n".join(map(plain, said)))
        return 0

    command = click.command(name, short_help=does, help=f"{does}\n\nJOBS: 13, or 13 14 20-25.")(run)
    command.params = [
        click.Option(["--json", "as_json"], is_flag=True, help="For programs."),
        click.Argument(
            ["jobs"], nargs=-1, required=True, metavar="JOBS...", shell_complete=complete
        ),
    ]
    return command
