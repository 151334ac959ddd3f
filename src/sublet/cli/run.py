"""`sublet run`: its options, for click; `foreground` does the work."""

from typing import Any

import click

from sublet.cli import program_options
from sublet.cli.completion import complete_files
from sublet.cli.foreground import run


@click.command(
    "run",
    cls=program_options.ProgramCommand,
    context_settings=program_options.CONTEXT,
)
@program_options.memory
@program_options.device
@program_options.on
@program_options.gpus
@click.option("--cpus", metavar="N", help="Use at most N cores; default: all.")
@click.option(
    "--on-oom",
    default="fail",
    metavar="fail|grow|split|split-exact",
    show_default=True,
    help="If it runs out of memory: grow restarts it with a larger lease, split has Keras train in "
    "micro-batches, split-exact only where that gives the same.",
)
@click.option("-n", "--name", metavar="TEXT", help="Name in `sublet ps` and `sublet status`.")
@program_options.python
@program_options.cold
@program_options.leave_children
@program_options.fence
@program_options.profile
@program_options.notify
@click.option(
    "--dry-run", is_flag=True, help="Say where and when it would start, and do not start it."
)
@click.option(
    "--report",
    metavar="FILE",
    shell_complete=complete_files,
    help="Write a JSON report of the run to this file.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless it fails.")
@program_options.words
def command(**options: Any) -> int:
    """Run PROGRAM like `python PROGRAM ARGS...`, but under a lease and started warm.

    \b
    sublet run train.py --epochs 3
    sublet run --memory 512MiB -m mypkg.train
    """
    return run(**options)
