"""Profiles a job: TensorFlow's own profile of it, and one time line of all programs beside it.

The programs record themselves, by orders in their attempts' directories (`formats.profile_order`);
who runs this collects what they leave, and what the broker says of leases meanwhile.
"""

import contextlib
import glob
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sublet.client.jobs import Job
from sublet.client.profile_feed import ProfileFeed
from sublet.client.profile_parts import ProfileParts
from sublet.client.program import this_process
from sublet.domain.profile import Profile
from sublet.errors import BadRequest, WorldError
from sublet.formats import profile_order
from sublet.formats.profile_order import LONGEST, ProfileOrder
from sublet.formats.usage_file import read_usage
from sublet.home import Home
from sublet.wire.rows import JobRow

STEPS = 20
_EVERY = 0.1
_ANSWERS = 10.0
"""Seconds in which a program begins to record, or ends: it looks for orders once a second. One in
which Python is busy in one long call is not waited for."""
_PLUGIN = "plugins/profile"
"""Where TensorBoard looks for profiles, below its logdir."""


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """This directory, made if need be; BadRequest if nothing can be written to it."""
    directory = Path(path).expanduser().absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError as error:
        raise BadRequest(
            f"The profile cannot be written to {directory}: {error.strerror}.",
            "Name a directory that you can write to.",
        ) from None


class ProfileRecorder:
    """Records one job, once; `run` blocks until that is done."""

    def __init__(
        self,
        job: int,
        logdir: str | os.PathLike[str] | None = None,
        *,
        steps: int = STEPS,
        seconds: float = LONGEST,
        patience: float | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`steps` 0 profiles by time alone, from now on. Gives up after `patience` seconds if
        TensorFlow has not started in it by then."""
        self._job = job
        self._logdir = None if logdir is None else checked_directory(logdir)
        self._steps, self._seconds, self._patience = steps, seconds, patience
        self._say = say
        self._home = Home.find()
        self._feed = ProfileFeed(self._home)
        self._placed: dict[str, ProfileOrder] = {}
        """The orders that were given, by the directory of the attempt."""
        self._notes: list[str] = []
        self._parts: ProfileParts

    def run(self) -> Profile:
        """Wait until the job runs, profile it, and leave the files. What there is when the job
        ends, or Ctrl-C comes, is kept."""
        row = Job(self._job).status()
        if row.state == "finished":
            raise BadRequest(
                f"Job {self._job} has ended: there is nothing to profile.",
                "Run it again with `sublet run --profile`, or profile one that runs.",
            )
        folder = self._logdir or checked_directory(self._home.logs / f"{row.attempt_id}.profile")
        with self._feed:
            try:
                row = self._await_start()
                self._begin(row, folder)
                self._await_end(row)
            except KeyboardInterrupt:
                if not self._placed:
                    raise
                self._notes.append("it was interrupted")
            except BaseException:
                self._give_up(folder)
                raise
            finally:
                self._withdraw()
        return self._write(row, folder)

    def _await_start(self) -> JobRow:
        said = False
        while True:
            row = self._feed.row(self._job)
            if row is not None and row.state == "running":
                return row
            if row is not None and row.state == "finished":
                raise BadRequest(f"Job {self._job} has ended before it could be profiled.")
            if row is not None and not said and row.state != "starting":
                said = True
                self._say(f"#{self._job} is {row.state}: waiting until it starts")
            time.sleep(_EVERY)

    def _begin(self, row: JobRow, folder: Path) -> None:
        """Have the neighbours record, then the job itself."""
        attempt = str(self._home.runs / row.attempt_id)
        other = profile_order.target(attempt)
        if other is not None and other.holds:
            raise self._busy(other.pid)
        stamp = time.strftime("%Y_%m_%d_%H_%M_%S")
        self._stamp = next(
            name
            for name in (stamp, *(f"{stamp}_{number}" for number in range(2, 1000)))
            if not (folder / f".{name}").exists() and not (folder / _PLUGIN / name).exists()
        )
        parts = folder / f".{self._stamp}"
        parts.mkdir(mode=0o700)
        self._parts = ProfileParts(parts)
        self._order_neighbours(row)
        until = time.monotonic() + _ANSWERS
        # One that is about to start is not to take its first steps meanwhile.
        while (
            _runs_tensorflow(attempt)
            and self._parts.silent(self._placed)
            and time.monotonic() < until
        ):
            time.sleep(_EVERY)
        process = this_process()
        name = re.sub(r"[^\w.-]+", "_", row.name)[:80]
        order = ProfileOrder(
            process["pid"],
            process["start"],
            str(parts),
            self._job,
            str(folder / _PLUGIN / self._stamp),
            f"{self._job}-{name}",
            self._steps,
            self._seconds,
        )
        try:
            busy = profile_order.place(attempt, order)
        except OSError:
            raise BadRequest(f"Job {self._job} has just ended.") from None
        if busy is not None:
            raise self._busy(busy)
        self._placed[attempt] = order

    def _await_end(self, row: JobRow) -> None:
        """Wait until all processes of the job have made their profiles, or it has ended."""
        began, said = time.monotonic(), False
        while not self._parts.done(self._job):
            if self._has_ended(row):
                if not self._parts.of(self._job):
                    self._notes.append("TensorFlow did not start in it: only leases are shown")
                return
            self._order_neighbours(row)
            waited = time.monotonic() - began
            if waited > 2 and not said and not self._parts.of(self._job):
                said = True
                self._say(self._silence(row))
            if waited > (self._patience or waited) and not self._parts.of(self._job):
                raise BadRequest(
                    f"{self._silence(row)}, after {self._patience:.0f} s.",
                    "Only programs that use TensorFlow in Python can be profiled.",
                )
            time.sleep(_EVERY)

        until = time.monotonic() + _ANSWERS
        while self._parts.ended(self._job) and not self._has_ended(row):
            if time.monotonic() > until:
                return
            time.sleep(_EVERY)

    def _has_ended(self, row: JobRow) -> bool:
        now = self._feed.row(self._job)
        return now is None or now.state == "finished" or now.attempt_id != row.attempt_id

    def _silence(self, row: JobRow) -> str:
        if _runs_tensorflow(str(self._home.runs / row.attempt_id)):
            return f"#{self._job} {row.name} does not answer: Python is busy in one long call"
        return f"TensorFlow has not started in #{self._job} {row.name}"

    def _order_neighbours(self, row: JobRow) -> None:
        """Have those that use the same device record their steps, if they use TensorFlow."""
        process = this_process()
        for other in self._feed.view.jobs.values():
            attempt = str(self._home.runs / other.attempt_id)
            if other.id == self._job or attempt in self._placed or other.pid is None:
                continue
            if not _devices(other) & _devices(row):
                continue
            if not _runs_tensorflow(attempt):
                continue
            order = ProfileOrder(
                process["pid"], process["start"], str(self._parts.directory), other.id
            )
            with contextlib.suppress(OSError):  # It has just ended.
                profile_order.place(attempt, order)
                self._placed[attempt] = order

    def _withdraw(self) -> None:
        for attempt, order in self._placed.items():
            profile_order.withdraw(attempt, order)

    def _give_up(self, folder: Path) -> None:
        """Remove the files of a profile that came to nothing."""
        if hasattr(self, "_parts"):
            shutil.rmtree(self._parts.directory, ignore_errors=True)
        if self._logdir is None:
            with contextlib.suppress(OSError):  # There are earlier profiles in it.
                folder.rmdir()

    def _write(self, row: JobRow, folder: Path) -> Profile:
        """Make the time line of what was recorded."""
        ended = time.monotonic_ns()
        until = time.monotonic() + _ANSWERS
        while self._parts.unfinished() and time.monotonic() < until:
            time.sleep(_EVERY)
        steps, nanoseconds, programs = 0, 0, set()
        for job, files in self._parts.by_job().items():
            for pid, path in files:
                events = profile_order.read_part(path)
                self._feed.trace.add_part(job, pid, events, len(files) > 1)
                for event in events:
                    match event:
                        case ["note", str(note)]:
                            self._notes.append(note if job == self._job else f"#{job}: {note}")
                        case ["done", int(counted), int(took)]:
                            steps, nanoseconds = max(steps, counted), max(nanoseconds, took)
                        case ["step", *_]:
                            programs.add(job)
        trace = folder / f"trace-{self._stamp}.json"
        device = row.device or ""
        try:
            trace.write_bytes(self._feed.trace.document(device, ended))
        except OSError as error:
            raise WorldError(
                f"The time line cannot be written to {folder}: {error.strerror}.",
                "See to its disk, then try again.",
            ) from error
        finally:
            shutil.rmtree(self._parts.directory, ignore_errors=True)
        place = glob.escape(str(folder / _PLUGIN / self._stamp))
        profiles = tuple(sorted(glob.glob(f"{place}/*.xplane.pb")))
        if not profiles and not self._notes:
            seen = self._job in programs
            written = "TensorFlow's profile was written" if seen else "a step of it was seen"
            self._notes.append(f"it ended before {written}")
        return Profile(
            self._job,
            row.name,
            device,
            steps,
            nanoseconds / 1e9,
            str(folder),
            str(trace),
            profiles,
            len(programs),
            tuple(dict.fromkeys(self._notes)),
        )

    def _busy(self, pid: int) -> BadRequest:
        return BadRequest(
            f"Job {self._job} is being profiled already, by process {pid}.",
            "Wait until that has ended: TensorFlow makes one profile at a time.",
        )


def _runs_tensorflow(attempt: str) -> bool:
    return any(one.runtime_started_ns for one in read_usage(attempt))


def _devices(row: JobRow) -> set[str | None]:
    return {card.device for card in row.cards} or {row.device}
