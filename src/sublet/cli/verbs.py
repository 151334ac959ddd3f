"""All commands, as a click group that imports a command only when it is used."""

import importlib
import os
import signal
from typing import TYPE_CHECKING

import click

from sublet import __version__
from sublet.cli import end_by, pipe_closed
from sublet.errors import BadRequest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "run": "Run a program under a lease, in the foreground.",
    "submit": "Queue a program.",
    "sweep": "Run a program with many parameters, and rank the runs.",
    "launch": "Run a tf.distribute cluster on this machine.",
    "ps": "List running, waiting and finished jobs.",
    "logs": "Show the output of a job.",
    "wait": "Wait for jobs to finish.",
    "cancel": "Stop jobs, or remove them from the queue.",
    "pause": "Pause jobs; they keep their leases.",
    "resume": "Resume paused jobs.",
    "retry": "Rerun finished jobs, with this shell's environment.",
    "probe": "Estimate a program's memory from a few small steps.",
    "plan": "Show how a program would train in so much memory, without training it.",
    "explain": "Show how a job's lease was sized.",
    "doctor": "Say what is wrong with a program, a log, a job or this machine.",
    "profile": "Profile a running job, and show all programs beside it on one time line.",
    "serve": "Serve models to TensorFlow Serving's clients.",
    "models": "List served models: memory, load time, requests, last use.",
    "bench": "Measure how fast a model answers.",
    "tune": "Find a model's best batching settings.",
    "replay": "Simulate the queue on a job trace.",
    "status": "Show devices, leases and waiting jobs.",
    "top": "Watch devices, jobs and models live, and act on them.",
    "ui": "Watch them on a web page: memory over time, logs, actions.",
    "metrics": "Print or serve metrics for Prometheus.",
    "config": "Show settings, and which file or variable each comes from.",
    "selftest": "Check that Sublet works on this machine.",
    "down": "Stop the broker; programs keep running.",
    "recover": "Repair a damaged job database.",
}
"""Every command and what it does: the list in `--help` imports none of them."""


_OTHER_WORDS = {
    "check": "doctor",
    "dashboard": "ui",
    "diagnose": "doctor",
    "jobs": "ps",
    "kill": "cancel",
    "list": "ps",
    "ls": "ps",
    "queue": "ps",
    "rerun": "retry",
    "stop": "cancel",
    "search": "sweep",
    "web": "ui",
}
"""What others call our commands."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        found = [CompletionItem(verb, help=does) for verb, does in VERBS.items()]
        return [
            *(one for one in found if one.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in ("cancel", "pause", "resume", "retry"):
            from sublet.cli.job_verbs import COMMANDS

            return COMMANDS[cmd_name]
        command: click.Command = importlib.import_module(f"sublet.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in ("help", "version"):  # As `sublet run --help` and `sublet --version`.
            words = ["--version"] if args[0] == "version" else [*args[1:2], "--help"]
            ctx.exit(through_click(words))
        if args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise BadRequest(f"There is no command {args[0]!r}.", _instead(args[0]))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Click would end with 1, as after an error.
            return pipe_closed()


def _instead(word: str) -> str:
    """What may have been meant by a word that is no command."""
    import difflib

    if word.endswith(".py") or os.path.isfile(word):
        return f"A program is run with `sublet run {word}`."
    if word in _OTHER_WORDS:
        return f"Use `sublet {_OTHER_WORDS[word]}`."
    alike = " or ".join(f"`sublet {verb}`" for verb in difflib.get_close_matches(word, VERBS, 2))
    return f"Did you mean {alike}?" if alike else "Run `sublet --help` to list commands."


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sublet")
def cli() -> None:
    """Run many TensorFlow programs on one device, each under a memory lease.

    \b
    sublet run train.py --epochs 3     like `python train.py`, but leased and warm
    sublet submit train.py             the same, in the queue
    sublet sweep --grid lr=0.1,0.01 train.py
                                       the same with many parameters, ranked
    sublet launch --workers 2 train.py a tf.distribute cluster
    sublet ps                          running, waiting and finished jobs
    sublet logs -f 13                  the output of a job
    sublet probe train.py              how much memory it would need
    sublet explain 13                  how a job's lease was sized
    sublet profile 13 --steps 20       what it does, for TensorBoard and Perfetto
    sublet serve models/               serve models to TensorFlow Serving clients
    sublet status                      devices, leases, waiting jobs
    sublet top                         the same, live
    sublet selftest                    check that it works on this machine
    sublet down                        stop the broker; programs keep running
    """


def through_click(words: list[str] | None = None) -> int:
    """Run the command that was typed, or these words; returns its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        # From here on a KeyboardInterrupt: click catches it, if the verb does not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = cli(words, prog_name="sublet", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "sublet"
        raise BadRequest(error.format_message(), f"See `{path} --help`.") from None
    except click.ClickException as error:
        raise BadRequest(error.format_message()) from None
    except click.Abort:
        return end_by(signal.SIGINT)
    return int(code or 0)
