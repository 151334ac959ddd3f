"""`sublet probe`: what a program would need, from a few steps with small batches."""

import sys
from typing import TYPE_CHECKING

import click

from sublet.cli import load_options, program_options
from sublet.cli.terminal_text import print_json, say
from sublet.client.api import Quiet
from sublet.client.probe import keep, probe
from sublet.policy.explanation import forecast_lines, gives
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.wire.messages import Granted


@click.command(
    "probe",
    cls=program_options.ProgramCommand,
    context_settings=program_options.CONTEXT,
)
@click.option(
    "--memory",
    "--mem",
    "memory",
    default="auto",
    metavar="SIZE",
    help="Lease for the probe itself; auto is a quarter of the device.",
    show_default=True,
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Stop the program this long after TensorFlow has started.",
)
@program_options.python
@click.option("--forget", is_flag=True, help="Do not use the result for later `auto` leases.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@program_options.words
def command(
    memory: str,
    seconds: float,
    python: str | None,
    forget: bool,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Run PROGRAM for a few steps on part of its batch, and estimate its peak memory.

    Keras trains for two epochs of three steps. What Keras and TensorFlow save goes to a scratch
    directory. Files that the program writes itself are still written; it can check the variable
    SUBLET_PROBE to avoid that.
    """
    progress = ProbeProgress()
    try:
        spec, forecast = probe(words, memory, seconds, python, progress, progress.runs)
    finally:
        progress.clear()
    kept = None if forget else keep(spec, forecast)
    if as_json:
        print_json(forecast, indent=2)
        return 0
    for line in forecast_lines(forecast, spec.name):
        say(plain(line))
    if kept is not None and kept.history.runs:
        print("sublet: its measured runs count for more than this forecast", file=sys.stderr)
    elif kept is not None:
        say(f"`auto` will give it {gives(kept)}")
    return 0


class ProbeProgress(Quiet, load_options.Progress):
    """Says which short run is under way, and what it waits for."""

    def runs(self, share: float) -> None:
        self.title = f"running it with {share:.0%} of its batch"
        self.show(f"{self.title} …")

    def waits(self, reason: str) -> None:
        self.show(f"{self.title}: waiting: {reason}")

    def granted(self, message: "Granted") -> None:
        self.show(f"{self.title} …")
