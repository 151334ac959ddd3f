"""The commands that change jobs: `cancel`, `pause`, `resume` and `retry`, all alike."""

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.terminal_text import print_json, say
from sublet.cli.verbs import VERBS
from sublet.client.jobs import act
from sublet.text import plain
from sublet.wire.messages import Verb


def _command(name: Verb, does: str) -> click.Command:
    """A command that does this to the jobs it is given."""

    def run(jobs: tuple[str, ...], as_json: bool) -> int:
        numbers = read_numbers(jobs)
        said = act(name, numbers)
        if as_json:
            print_json({"ids": numbers, "said": said})
        else:
            say("\n".join(map(plain, said)))
        return 0

    command = click.command(
        name,
        help=f"{does}\n\nJOBS: numbers, ranges or names, such as 13 20-25 train.py.",
    )(run)
    command.params = [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        click.Argument(
            ["jobs"], nargs=-1, required=True, metavar="JOBS...", shell_complete=complete
        ),
    ]
    return command


_VERBS: tuple[Verb, ...] = ("cancel", "pause", "resume", "retry")
COMMANDS = {str(name): _command(name, VERBS[name]) for name in _VERBS}
