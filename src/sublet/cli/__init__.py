"""The `sublet` command: one file per verb, loaded when it is used."""

import importlib
import sys

import click

from sublet import __version__
from sublet.errors import SubletError

_VERBS = ("run", "status", "down", "recover", "replay")


class _Verbs(click.Group):
    """A group that imports a verb only when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"sublet.cli.{cmd_name}")
        command: click.Command = module.command
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sublet")
def cli() -> None:
    """Run many TensorFlow programs on one device, each under a memory lease.

    \b
    sublet run train.py --epochs 3     like `python train.py`, leased, started warm
    sublet status                      devices, leases, who waits and why
    sublet down                        end the broker; programs go on
    """


def main() -> int:
    """Run the command; an error becomes two lines on stderr, never a traceback."""
    try:
        code = cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except SubletError as error:
        print(f"sublet: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"        {error.hint}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141
    return int(code or 0)
