"""What `sublet run` does: run a program in the foreground, and report on it on stderr.

Loads most modules only after the job was sent.
"""

import os
import sys

from sublet import cli
from sublet.cli import end_by
from sublet.client import job_request
from sublet.client.run import GaveUp, run_in_foreground
from sublet.errors import BadRequest, SubletError
from sublet.home import Home
from sublet.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sublet.client.profile_starts import BackgroundProfile
    from sublet.domain.job import Outcome
    from sublet.domain.job_fields import JobFields
    from sublet.domain.profile import Profile
    from sublet.wire.messages import Ended, Granted, Retried, Started


def run(
    words: tuple[str, ...],
    memory: str = "auto",
    gpus: str | None = None,
    cpus: str | None = None,
    report: str | None = None,
    profile: str | None = None,
    quiet: bool = False,
    dry_run: bool = False,
    **options: "Any",
) -> int:
    """Run a program under a lease; returns its exit code. Options as `job_request.job` takes them,
    but for `gpus` and `cpus`, which are what was typed."""
    spec = job_request.job(
        words, memory, gpus=_number("--gpus", gpus), cpus=_number("--cpus", cpus), **options
    )
    if dry_run:
        from sublet.cli import dry_run as dry

        return dry.dry_run(spec)
    spec["surroundings"]["closed"] = cli.closed
    if report is not None and os.path.isdir(report):
        raise BadRequest(f"--report {report} is a directory.", "Name a file.")
    reporter = _Reporter(quiet)
    profiler = _Profiler(profile, quiet)
    try:
        ended = run_in_foreground(
            spec, Home.find(), reporter, [0, 1, 2], pass_signals=True, on_accepted=profiler.start
        )
    except GaveUp as stop:
        reporter.clear()
        _say("interrupted while waiting; the program was not started")
        return end_by(stop.number)
    reporter.clear()
    profiler.finish()
    if report is not None:
        _write_report(report, str(spec["name"]), ended)
    if ended.outcome.cause in ("lease exceeded", "device full"):
        typed = {**options, "gpus": gpus, "cpus": cpus}
        values = {
            name: typed.get(name) for name in ("device", "on", "gpus", "cpus", "name", "python")
        }
        given = [word for name, value in values.items() if value for word in (f"--{name}", value)]
        given += ["--cold"] * bool(options.get("cold"))
        given += ["--leave-children"] * bool(options.get("leave_children"))
        given += ["--fence"] * bool(options.get("fence"))
        _explain(ended, [*given, *words])
    elif ended.outcome.cause == "lost":
        _say(f"the program was lost: {ended.outcome.message or 'nobody saw its exit code'}")
    elif ended.outcome.cause in ("cancelled", "stopped"):
        why = ended.outcome.message if ended.outcome.cause == "stopped" else "`sublet cancel`"
        _say(f"the program was {'not started' if ended.lease is None else 'ended'}: {why}")
    elif not quiet and ended.outcome.code:
        _advise(ended.outcome, spec)
    if not quiet and ended.outcome.left:
        _say(f"stopped processes that the program left behind: {', '.join(ended.outcome.left)}")
        _say("`--leave-children` keeps such processes running")
    if not quiet and ended.lease is not None:
        _say(summary(ended))
    if ended.outcome.cause == "signalled":
        return end_by(ended.outcome.code - 128)
    return ended.outcome.code


class _Reporter:
    """Sublet's messages on stderr, among the program's own."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.lines = 0
        """How many lines on the screen show the reason for waiting."""

    def waits(self, reason: str) -> None:
        if self.quiet:
            return
        if not self.terminal:
            _say(f"waiting: {reason}")
            return
        import textwrap

        self.clear()
        width = max(40, os.get_terminal_size(2).columns) - 1
        lines = textwrap.wrap(f"sublet: waiting: {plain(reason)}", width, subsequent_indent=" " * 8)
        print("\n".join(lines), file=sys.stderr, flush=True)
        self.lines = len(lines)

    def granted(self, message: "Granted") -> None:
        self.clear()

    def started(self, message: "Started") -> None:
        if message.how != "warm" and not self.quiet:
            _say(f"started {message.how}")

    def lacks_memory(self, reason: str) -> None:
        if not self.quiet:
            _say(f"the program {plain(reason)}; it waits for up to 10 s")

    def retried(self, message: "Retried") -> None:
        if self.quiet:
            return
        from sublet.units import format_bytes

        had = format_bytes(message.lease.ceiling) if message.lease else "its lease"
        _say(f"out of memory within {had}; starting again with {format_bytes(message.least)}")

    def clear(self) -> None:
        """Erase the lines about waiting."""
        if self.lines:
            print(f"\x1b[{self.lines}F\x1b[J", end="", file=sys.stderr, flush=True)
            self.lines = 0


class _Profiler:
    """Profiles the program if that is asked for, and says what came of it."""

    def __init__(self, directory: str | None, quiet: bool) -> None:
        self._directory = directory
        self._quiet = quiet
        self._thread: BackgroundProfile | None = None
        if directory:
            from sublet.client.profile import checked_directory

            checked_directory(directory)

    def start(self, job: int) -> None:
        if self._directory is None:
            return
        from sublet.client.profile_starts import BackgroundProfile

        self._thread = BackgroundProfile(job, self._directory or None, self._ended)
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.finish()

    def _ended(self, profile: "Profile | SubletError") -> None:
        if isinstance(profile, SubletError):
            _say(f"there is no profile: {profile}")
        elif not self._quiet:
            from sublet.cli.profile import lines

            for line in lines(profile):
                _say(line)


def summary(ended: "Ended") -> str:
    """The closing line: lease, peak, time, start-up."""
    from sublet.units import format_seconds

    outcome = ended.outcome
    parts = []
    if ended.lease is not None:
        parts.append(f"lease {ended.lease.size_text}")
    parts.append(_peak(outcome))
    parts.append(f"ran {format_seconds(outcome.ran)}")
    if ended.how:
        took = "" if outcome.startup is None else f" in {format_seconds(outcome.startup)}"
        parts.append(f"started {ended.how.partition(':')[0]}{took}")
    if outcome.waited >= 1:
        parts.append(f"waited {format_seconds(outcome.waited)}")
    return " · ".join(part for part in parts if part)


def _peak(outcome: "Outcome") -> str:
    if not outcome.tensorflow:
        return "TensorFlow was not used"
    if outcome.peak is None:
        return "peak unknown"
    from sublet.units import format_bytes

    return f"peak {', '.join(map(format_bytes, outcome.peaks or (outcome.peak,)))}"


def _explain(ended: "Ended", words: list[str]) -> None:
    """Print why the program ran out of memory, who else was there, and the command to try.

    `words` are the program and the options that were typed, except those on memory.
    """
    import shlex
    import textwrap

    from sublet.units import format_bytes, written_bytes

    outcome, lease = ended.outcome, ended.lease
    assert lease is not None
    rows = [
        ("lease", f"{lease.size_and_place} ({lease.basis})"),
        ("peak", _peak(outcome).removeprefix("peak ")),
    ]
    if outcome.asked:
        rows.append(("asked", f"{format_bytes(outcome.asked)} more, in one piece"))
    if outcome.message:
        rows.append(("said", outcome.message.splitlines()[0]))
    if outcome.siblings:
        rows.append(("beside", f"{outcome.siblings}, of the same program and lease"))
    full = outcome.cause == "device full"
    others = [
        (f"#{tenant.job} " if tenant.job else "") + f"{tenant.name} {format_bytes(tenant.bytes)}"
        for tenant in outcome.tenants
    ]
    nobody = "gone, or not shown by the driver" if full else "no other leases on this device"
    rows.append(("others", ", ".join(others) or nobody))
    command = shlex.join(words)
    if full:
        rows.append(("try", f"sublet run {command}"))
        rows.append(("when", f"what runs on {lease.where} without a lease has ended"))
    elif ended.suggest is None:
        rows.append(("try", f"a smaller batch: {lease.where} cannot give it more"))
    else:
        # Nobody knows how much is enough where TensorFlow has not said what it asked for.
        enough = outcome.asked or lease.elastic
        memory = written_bytes(ended.suggest) if enough else "grow"
        rows.append(("try", f"sublet run --memory {memory} {command}"))
        rows.append(("or", f"sublet run --on-oom grow {command}"))
    if full:
        _say(f"other programs took memory of {lease.where} that this one was promised")
    else:
        _say("the program needed more memory than its lease")
    for name, raw in rows:
        text = "\n".join(map(plain, raw.split("\n")))
        lines = textwrap.wrap(text, 70, break_long_words=False, break_on_hyphens=False) or [""]
        if text.startswith("sublet run "):
            lines = [text]  # To be copied, so it stays one line; the terminal wraps it.
        print(f"  {name:<7}{lines[0]}", file=sys.stderr)
        for line in lines[1:]:
            print(f"  {'':<7}{line}", file=sys.stderr)
    sys.stderr.flush()


def _advise(outcome: "Outcome", spec: "JobFields") -> None:
    """Say what the error that ended the program means, if that is known."""
    from sublet.doctor.failure import explain

    program = spec["program"]
    script = os.fsdecode(program["target"]) if program["kind"] == "script" else ""
    for one in explain(outcome, script):
        place = f"{one.place}: " if one.place else ""
        _say(f"{place}{one.sentence} [{one.rule}]")
        _say(f"fix: {one.fix}")


def _write_report(path: str, name: str, ended: "Ended") -> None:
    import msgspec

    from sublet.client.api import Report

    try:
        with open(path, "wb") as file:
            file.write(msgspec.json.encode(Report.of(name, ended)))
    except OSError as error:
        _say(f"the report {path} could not be written: {error.strerror}")


def _number(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise BadRequest(f"{option} {text!r} is not a whole number.", "Write 1, 2, …") from None


def _say(text: str) -> None:
    print(f"sublet: {plain(text)}", file=sys.stderr, flush=True)
