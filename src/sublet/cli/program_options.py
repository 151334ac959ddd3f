"""The options that `run`, `submit` and `probe` share: which program, and how it is started."""

from typing import Any

import click

from sublet.cli import settings
from sublet.cli.completion import complete_files
from sublet.cli.quick import OPTIONAL

CONTEXT: dict[str, Any] = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
}
"""What stands behind the program is the program's."""


class ProgramCommand(click.Command):
    """A command whose options end where a program begins: with its name, or with `-m MODULE`. What
    is not typed may be set elsewhere (`settings`)."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if self.name in settings.VERBS and not extra.get("resilient_parsing"):
            extra["default_map"] = settings.values(self.name)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option)]
        with_value = {name for one in options if not one.is_flag for name in one.opts}
        place, args = 0, list(args)
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-", "--"):
            if args[place] == "-m":
                args = [*args[:place], "--", *args[place:]]
                break
            if args[place] in OPTIONAL:
                args[place] += "="
            place += 2 if args[place] in with_value else 1
        return super().parse_args(ctx, args)


memory = click.option(
    "--memory",
    "--mem",
    "memory",
    default="auto",
    metavar="SIZE",
    help="2GiB; 40% of the device; a range 2GiB..6GiB; grow (start small); or auto (learn from "
    "earlier runs). The last three grow while there is room.",
    show_default=True,
)
device = click.option(
    "--device",
    "--gpu",
    "device",
    metavar="NAME",
    help="cpu, gpu, gpu0 (or just 0), a UUID, or a list to choose from: 0,2. Default: "
    "CUDA_VISIBLE_DEVICES, else any GPU, else the CPU.",
)
gpus = click.option("--gpus", metavar="N", help="Run on N GPUs, with a lease of this size on each.")
python = click.option(
    "--python",
    metavar="PATH",
    shell_complete=complete_files,
    help="Python interpreter. Default: the active environment's.",
)
cold = click.option(
    "--cold", is_flag=True, help="Start a fresh interpreter instead of forking a warm one."
)
leave_children = click.option(
    "--leave-children",
    is_flag=True,
    help="Do not stop processes that the program leaves behind.",
)
fence = click.option(
    "--fence/--no-fence",
    default=None,
    help="On a GPU, hold the whole program to its lease, not just TensorFlow's pool. Needs a C "
    "compiler once. Default: SUBLET_FENCE, or off.",
)
on = click.option(
    "--on",
    metavar="CLUSTER",
    help="Run on a node of a Ray cluster: ray (that of RAY_ADDRESS, or of this machine), "
    "ray://HOST:PORT, or HOST:PORT.",
)
notify = click.option(
    "--notify",
    metavar="WHO",
    help="Tell WHO when it has ended: desktop, the address of a web hook, or a command in quotes.",
)
profile = click.option(
    "--profile",
    metavar="[=DIR]",
    help="Profile its first 20 steps, for TensorBoard, and record all programs beside it, for "
    "Perfetto. Default: beside its log.",
)
words = click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="PROGRAM [ARGS]...",
    shell_complete=complete_files,
)
