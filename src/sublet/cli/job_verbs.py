"""The commands that change jobs: `cancel`, `pause`, `resume` and `retry`, all alike."""

import click

from sublet.cli.job_numbers import complete, read_numbers
from sublet.cli.terminal_text import print_json, say
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
        short_help=does,
        help=f"{does}\n\nJOBS: numbers, ranges or names, such as 13 20-25 train.py.",
    )(run)
    command.params = [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        click.Argument(
            ["jobs"], nargs=-1, required=True, metavar="JOBS...", shell_complete=complete
        ),
    ]
    return command


_VERBS: dict[Verb, str] = {
    "cancel": "Stop jobs, or remove them from the queue.",
    "pause": "Pause jobs; they keep their leases.",
    "resume": "Resume paused jobs.",
    "retry": "Rerun finished jobs, with this shell's environment.",
}
COMMANDS = {str(name): _command(name, does) for name, does in _VERBS.items()}
