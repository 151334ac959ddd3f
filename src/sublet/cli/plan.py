"""`sublet plan`: how a program would train in so much memory, from a few steps."""

import shlex
import sys

import click

from sublet.cli import program_options
from sublet.cli.probe import ProbeProgress
from sublet.cli.terminal_text import print_json, say
from sublet.client.probe import short_runs
from sublet.errors import BadRequest
from sublet.policy.training_plan import TrainingPlan, plan
from sublet.text import plain
from sublet.units import format_bytes, format_seconds, parse_bytes


@click.command(
    "plan",
    cls=program_options.ProgramCommand,
    context_settings=program_options.CONTEXT,
)
@click.option(
    "--memory", "--mem", "memory", required=True, metavar="SIZE", help="The lease to plan for."
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Stop each short run this long after TensorFlow has started.",
)
@program_options.python
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@program_options.words
def command(
    memory: str, seconds: float, python: str | None, as_json: bool, words: tuple[str, ...]
) -> int:
    """Show how PROGRAM would train in so much memory with `--on-oom split`: in which micro-batches,
    with which peak, for how long.

    Nothing is trained: PROGRAM is run for a few steps on parts of its batch, as by `sublet probe`.
    """
    ceiling = parse_bytes(memory)
    progress = ProbeProgress()
    try:
        spec, passes = short_runs(words, "auto", seconds, python, progress, progress.runs)
    finally:
        progress.clear()
    planned = plan(passes, ceiling)
    if planned is None:
        raise BadRequest(
            f"{spec.name} did not show the size of its batches.",
            "It has to call Keras' `fit`, or `batch` of a tf.data.Dataset with a number.",
        )
    if as_json:
        print_json(planned, indent=2)
        return 0
    if not all(one.complete for one in passes):
        print("sublet: its short runs did not come to an end, so it may need more", file=sys.stderr)
    for line in lines(planned, ceiling, spec.name, shlex.join(words)):
        say(plain(line))
    return 0


def lines(planned: TrainingPlan, ceiling: int, name: str, command: str) -> list[str]:
    """The plan as lines for a terminal."""
    out = [
        f"{name}: batches of {planned.batch}; whole, they need about {format_bytes(planned.whole)}"
    ]
    if planned.lacks:
        lacks = format_bytes(planned.lacks)
        return [*out, f"  it does not fit in micro-batches: {lacks} more would be needed"]
    split = planned.pieces > 1
    way = f"{planned.pieces} micro-batches of {planned.rows}" if split else "whole batches"
    out.append(f"  {way}, in {format_bytes(ceiling)}: a peak of about {format_bytes(planned.peak)}")
    if planned.seconds is not None:
        took = format_seconds(planned.seconds)
        steps = f"{planned.steps} step{'s' * (planned.steps != 1)}"
        epochs = f"{planned.epochs} epochs of " if planned.epochs != 1 else ""
        out.append(f"  about {took} for {epochs}{steps}")
    option = "--on-oom split " if split else ""
    return [*out, f"  sublet run --memory {ceiling // 2**20}MiB {option}{command}"]
