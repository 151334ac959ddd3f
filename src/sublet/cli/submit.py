"""`sublet submit`: a program into the queue."""

from typing import Any

import click

from sublet.cli import program_options
from sublet.cli.job_numbers import complete, read_indexes, read_numbers
from sublet.cli.terminal_text import print_json
from sublet.client.jobs import submit_array
from sublet.client.profile import checked_directory
from sublet.client.profile_starts import start_detached
from sublet.errors import BadRequest
from sublet.units import parse_seconds


@click.command(
    "submit",
    cls=program_options.ProgramCommand,
    context_settings=program_options.CONTEXT,
)
@click.option("-n", "--name", metavar="TEXT", help="Name in `sublet ps` and `sublet status`.")
@program_options.memory
@program_options.device
@program_options.on
@click.option(
    "--gpus",
    type=click.IntRange(1),
    metavar="N",
    help="Run on N GPUs, with a lease of this size on each.",
)
@click.option("--cpus", type=click.IntRange(1), metavar="N", help="Use at most N cores.")
@click.option(
    "--after",
    multiple=True,
    metavar="JOBS",
    shell_complete=complete,
    help="Start once these jobs have ended, even if they failed.",
)
@click.option(
    "--after-ok",
    multiple=True,
    metavar="JOBS",
    shell_complete=complete,
    help="Start once these jobs have succeeded; cancelled if one fails.",
)
@click.option(
    "-p",
    "--priority",
    type=click.Choice(["high", "normal", "low"]),
    default="normal",
    show_default=True,
)
@click.option(
    "--opportunistic",
    is_flag=True,
    help="Run only on spare capacity; stop and requeue it when others need the room.",
)
@click.option("-t", "--time", metavar="SPAN", help="Time limit, such as 90s, 45min or 2h.")
@click.option(
    "--grace",
    metavar="SPAN",
    default="10s",
    show_default=True,
    help="Time between SIGTERM and SIGKILL, to save its work.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Retry up to N times, with backoff.",
)
@click.option(
    "--no-requeue",
    is_flag=True,
    help="Do not requeue it after preemption, a reboot, or exit code 42.",
)
@click.option(
    "--on-oom",
    type=click.Choice(["fail", "grow", "split", "split-exact"]),
    default="grow",
    show_default=True,
    help="If it runs out of memory: grow restarts it with a larger lease, split has Keras train in "
    "micro-batches, split-exact only where that gives the same.",
)
@click.option(
    "--array",
    metavar="RANGE",
    help="One job per index: 0-9, 0-9:3 or 1,5,7; 0-99%4 runs four at a time.",
)
@click.option("--split", is_flag=True, help="Log stdout and stderr to separate files.")
@program_options.python
@program_options.cold
@program_options.leave_children
@program_options.fence
@program_options.profile
@program_options.notify
@click.option("--json", "as_json", is_flag=True, help="Print the job number as JSON.")
@program_options.words
def command(
    words: tuple[str, ...],
    memory: str,
    array: str | None,
    after: tuple[str, ...],
    after_ok: tuple[str, ...],
    opportunistic: bool,
    no_requeue: bool,
    time: str | None,
    grace: str,
    profile: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Queue PROGRAM. It runs like `sublet run PROGRAM`, but without a terminal.

    \b
    sublet submit --name cnn --time 2h train.py --lr 0.1
    sublet submit --array 0-9 train.py --seed {index}
    sublet submit --after-ok 13 evaluate.py
    """
    indexes, at_once = read_indexes(array) if array is not None else ((), 0)
    if options["notify"] and array is not None:
        raise BadRequest(
            "An array does not tell of each of its jobs.",
            "Submit one more job after it, with --after and --notify.",
        )
    if profile is not None:
        if array is not None:
            raise BadRequest(
                "An array is not profiled.", "Profile one of its jobs when it runs: sublet profile."
            )
        if profile:
            checked_directory(profile)
    jobs = submit_array(
        words,
        indexes,
        memory,
        at_once=at_once,
        after=read_numbers(after, "--after "),
        after_ok=read_numbers(after_ok, "--after-ok "),
        service="opportunistic" if opportunistic else "guaranteed",
        requeue=not no_requeue,
        time=None if time is None else _span("--time", time),
        grace=_span("--grace", grace),
        **options,
    )
    numbers = [job.id for job in jobs]
    place = None if profile is None else str(start_detached(numbers[0], profile or None))
    if as_json:
        print_json({"id": numbers[0], "ids": numbers, "profile": place})
    elif len(numbers) == 1:
        click.echo(f"#{numbers[0]} is in the queue; follow it with `sublet logs -f {numbers[0]}`")
        if place is not None:
            click.echo(f"its profile will be in {place}")
    else:
        click.echo(f"#{numbers[0]} to #{numbers[-1]} are in the queue; list them with `sublet ps`")
    return 0


def _span(option: str, text: str) -> float:
    try:
        return parse_seconds(text)
    except BadRequest as error:
        raise BadRequest(f"{option} {error.message}", error.hint) from None
