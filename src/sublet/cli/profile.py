"""`sublet profile`: what a running job does, step by step, and who is beside it."""

import click

from sublet.cli.completion import complete_files
from sublet.cli.job_numbers import complete, read_number
from sublet.cli.terminal_text import print_json, say, tell
from sublet.client.profile import STEPS, ProfileRecorder
from sublet.domain.profile import Profile
from sublet.formats.profile_order import LONGEST
from sublet.text import plain
from sublet.units import format_seconds

_PATIENCE = 10.0


@click.command("profile")
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help=f"Profile N steps, from the next one on. Default: {STEPS}.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, LONGEST),
    metavar="N",
    help=f"Profile for N seconds, from now on; with --steps, at most. Default: {LONGEST:.0f} at "
    "most.",
)
@click.option(
    "--logdir",
    metavar="DIR",
    shell_complete=complete_files,
    help="Where to leave the files, for `tensorboard --logdir`. Default: beside the job's log.",
)
@click.option(
    "--wait", is_flag=True, help="Wait for TensorFlow to start in it, however long that takes."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("job", shell_complete=complete)
def command(
    job: str,
    steps: int | None,
    seconds: float | None,
    logdir: str | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Profile JOB, which runs, with TensorFlow's profiler, and record all programs beside it.

    \b
    sublet profile 13 --steps 20
    sublet profile 13 --seconds 5

    A step is a batch of Keras'; in programs without Keras, a call of a tf.function or Session.run.
    A job that waits is profiled when it starts.
    """
    count = steps if steps is not None else 0 if seconds is not None else STEPS
    recorder = ProfileRecorder(
        read_number(job),
        logdir,
        steps=count,
        seconds=seconds or LONGEST,
        patience=None if wait else max(_PATIENCE, seconds or 0.0),
        say=tell,
    )
    profile = recorder.run()
    if as_json:
        print_json(profile, indent=2)
    else:
        say("\n".join(lines(profile)))
    return 0 if profile.profiles else 1


def lines(profile: Profile) -> list[str]:
    """What came of a profile, and how to open it."""
    name = f"#{profile.job} {plain(profile.name)}"
    if profile.steps:
        each = format_seconds(profile.seconds / profile.steps)
        took = format_seconds(profile.seconds)
        first = f"{name}: {profile.steps} step{'s' * (profile.steps != 1)} in {took}, {each} each"
    elif profile.profiles:
        first = f"{name}: {format_seconds(profile.seconds)}, no steps were seen"
    else:
        first = f"{name}: TensorFlow made no profile"
    out = [first, *(f"  note: {plain(note)}" for note in profile.notes)]
    if profile.profiles:
        out.append(f"  tensorboard --logdir {profile.logdir}")
    beside = f"{profile.programs} program{'s' * (profile.programs != 1)} on one time line"
    return [*out, f"  {profile.trace}", f"    {beside}: open it in ui.perfetto.dev"]
