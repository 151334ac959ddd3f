"""`sublet run`: a program in the foreground, under a lease."""

import os
import sys
from pathlib import Path

import click
import msgspec

from sublet.client.api import Report, job_spec
from sublet.client.run import GaveUp, run_in_foreground
from sublet.domain.job import Outcome
from sublet.home import Home
from sublet.units import MiB, format_bytes, format_seconds
from sublet.wire.messages import Ended, Granted, Retried, Started


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
@click.option("--cpus", type=int, metavar="N", help="Run on so many processors; default: all.")
@click.option(
    "--on-oom",
    type=click.Choice(["fail", "grow"]),
    default="fail",
    show_default=True,
    help="grow: when it runs out of memory, start it again with a larger lease.",
)
@click.option("--name", metavar="TEXT", help="What to call it in `sublet status`.")
@click.option("--python", metavar="PATH", help="Interpreter; default: the active environment's.")
@click.option("--cold", is_flag=True, help="Start a fresh interpreter instead of a warm fork.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write how it went to this file, as JSON.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def command(
    memory: str,
    device: str | None,
    cpus: int | None,
    on_oom: str,
    name: str | None,
    python: str | None,
    cold: bool,
    report: Path | None,
    quiet: bool,
    words: tuple[str, ...],
) -> int:
    """Run PROGRAM like `python PROGRAM ARGS...`, but leased, and started warm.

    \b
    sublet run train.py --epochs 3
    sublet run --memory 512MiB -- python -m mypkg.train
    """
    spec = job_spec(
        words, memory, device, cpus, "grow" if on_oom == "grow" else "fail", name, python, cold
    )
    voice = _Voice(quiet)
    try:
        ended = run_in_foreground(spec, Home.find(), voice, [0, 1, 2], pass_signals=True)
    except GaveUp as stop:
        voice.clear()
        _say("gave up waiting; the program was not started")
        return 128 + stop.number
    voice.clear()
    if report is not None:
        report.write_bytes(msgspec.json.encode(Report.of(spec.name, ended)))
    if ended.outcome.cause == "lease exceeded":
        _explain(ended, list(words))
    elif ended.outcome.cause == "lost":
        _say(f"the program was lost: {ended.outcome.message or 'nobody saw its exit code'}")
    if not quiet:
        _say(summary(ended))
    return ended.outcome.code


class _Voice:
    """Sublet's own words on stderr, between the program's."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.lines = 0
        """How many lines on the screen say what it waits for."""

    def waits(self, reason: str) -> None:
        if self.quiet:
            return
        if not self.terminal:
            _say(f"waiting: {reason}")
            return
        import textwrap

        self.clear()
        width = max(40, os.get_terminal_size(2).columns) - 1
        lines = textwrap.wrap(f"sublet: waiting: {reason}", width, subsequent_indent=" " * 8)
        print("\n".join(lines), file=sys.stderr, flush=True)
        self.lines = len(lines)

    def granted(self, message: Granted) -> None:
        self.clear()

    def started(self, message: Started) -> None:
        if message.how != "warm" and not self.quiet:
            _say(f"started {message.how}")

    def retried(self, message: Retried) -> None:
        if self.quiet:
            return
        had = format_bytes(message.lease.ceiling) if message.lease else "its lease"
        _say(f"out of memory within {had}; starting again with {format_bytes(message.least)}")

    def clear(self) -> None:
        """Take the waiting lines away."""
        if self.lines:
            print(f"\x1b[{self.lines}F\x1b[J", end="", file=sys.stderr, flush=True)
            self.lines = 0


def summary(ended: Ended) -> str:
    """The closing line: lease, peak, time, start-up."""
    told = ended.outcome
    parts = []
    if ended.lease is not None:
        parts.append(f"lease {format_bytes(ended.lease.ceiling)}")
    parts.append(_peak(told))
    parts.append(f"ran {format_seconds(told.ran)}")
    if ended.how:
        took = "" if told.startup is None else f" in {format_seconds(told.startup)}"
        parts.append(f"started {ended.how.partition(':')[0]}{took}")
    if told.waited >= 1:
        parts.append(f"waited {format_seconds(told.waited)}")
    return " · ".join(part for part in parts if part)


def _peak(told: Outcome) -> str:
    if not told.tensorflow:
        return "TensorFlow was not used"
    if told.peak is None:
        return "peak unknown"
    return f"peak {format_bytes(told.peak)}"


def _explain(ended: Ended, words: list[str]) -> None:
    """Why it died, who else was there, and the command that would have worked."""
    import shlex
    import textwrap

    told, lease = ended.outcome, ended.lease
    assert lease is not None
    rows = [
        ("lease", f"{format_bytes(lease.ceiling)} on {lease.device} ({lease.basis})"),
        ("peak", format_bytes(told.peak) if told.peak is not None else "unknown"),
    ]
    if told.asked:
        rows.append(("asked", f"{format_bytes(told.asked)} more, in one piece"))
    if told.message:
        rows.append(("said", told.message.splitlines()[0]))
    others = [
        f"#{tenant.job} {tenant.name} {format_bytes(tenant.bytes)}" for tenant in told.tenants
    ]
    rows.append(("others", ", ".join(others) or "nobody else held a lease on it"))
    command = shlex.join(words)
    if ended.suggest is None:
        rows.append(("try", f"a smaller batch: {lease.device} cannot give it more"))
    else:
        rows.append(("try", f"sublet run --memory {ended.suggest // MiB}MiB {command}"))
        rows.append(("or", f"sublet run --on-oom grow {command}"))
    _say("the program ran out of the memory of its lease")
    for name, text in rows:
        lines = textwrap.wrap(text, 70, break_long_words=False, break_on_hyphens=False) or [""]
        print(f"  {name:<7}{lines[0]}", file=sys.stderr)
        for line in lines[1:]:
            print(f"  {'':<7}{line}", file=sys.stderr)
    sys.stderr.flush()


def _say(text: str) -> None:
    print(f"sublet: {text}", file=sys.stderr, flush=True)
