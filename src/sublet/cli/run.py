"""`sublet run`: its options, for click; `foreground` does the work."""

from typing import Any

import click

from sublet.cli.completion import complete_files
from sublet.cli.foreground import run


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    short_help="Run a program under a lease, in the foreground.",
)
@click.option(
    "-m",
    "--memory",
    default="auto",
    metavar="SIZE",
    help="2GiB, 40% (of the device), grow (all that is free), or auto: learned from earlier runs.",
    show_default=True,
)
@click.option("--device", metavar="NAME", help="cpu, gpu, gpu0 or a UUID.")
@click.option("--cpus", metavar="N", help="Run on N processors; default: all.")
@click.option(
    "--on-oom",
    default="fail",
    metavar="fail|grow",
    show_default=True,
    help="grow: when it runs out of memory, start it again with a larger lease.",
)
@click.option("--name", metavar="TEXT", help="What to call it in `sublet status`.")
@click.option(
    "--python",
    metavar="PATH",
    shell_complete=complete_files,
    help="Interpreter; default: the active environment's.",
)
@click.option("--cold", is_flag=True, help="Start a fresh interpreter instead of a warm fork.")
@click.option(
    "--leave-children",
    is_flag=True,
    help="Do not end processes that the program leaves behind.",
)
@click.option(
    "--report",
    metavar="FILE",
    shell_complete=complete_files,
    help="Write a report of the run to this file, as JSON.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless it fails.")
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="PROGRAM [ARGS]...",
    shell_complete=complete_files,
)
def command(**options: Any) -> int:
    """Run PROGRAM like `python PROGRAM ARGS...`, but leased, and started warm.

    \b
    sublet run train.py --epochs 3
    sublet run --memory 512MiB -- python -m mypkg.train
    """
    return run(**options)
