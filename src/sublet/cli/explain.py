"""`sublet explain`: what the size of a job's lease rests on."""

import click

from sublet.cli.job_numbers import complete, read_number
from sublet.cli.terminal_text import print_json, say
from sublet.client.connection import ask
from sublet.policy.explanation import lines
from sublet.text import plain
from sublet.wire.messages import AskExplain, Explained


@click.command("explain")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("job", shell_complete=complete)
def command(job: str, as_json: bool) -> int:
    """Show how JOB's lease was sized: earlier runs, their peaks, and the margin."""
    explanation = ask(AskExplain(read_number(job)), Explained).explanation
    if as_json:
        print_json(explanation, indent=2)
        return 0
    for line in lines(explanation):
        say(plain(line))
    return 0
