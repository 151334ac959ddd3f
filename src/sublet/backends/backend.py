"""The seam between the broker and whoever runs its attempts.

The broker asks through `Backend` and hears back through `Reports`; it knows no backend by name. An
attempt goes by its id (`Job.attempt_id`). A backend holds no leases and decides nothing. For each
attempt that it has launched, offered or adopted it reports `ended` or `never_ran` exactly once,
when that was seen; only then does the broker end the lease.
"""

from collections.abc import Callable, Sequence, Set
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM
from typing import Literal, Protocol

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.job import Job, Outcome, Process
from sublet.domain.nursery import Nursery
from sublet.wire.rows import NurseryRow

ENDING_SIGNALS = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
"""Signals by which users end programs."""

Step = Literal["log", "start"]


class LaunchFailed(Exception):
    """The machine does not let an attempt start for now: no space, no descriptors, no processes.

    Nothing of the attempt was started. `step` says what failed, so that jobs which do not need that
    step are not held up.
    """

    def __init__(self, step: Step, what: str, error: OSError) -> None:
        where = f" ({error.filename})" if error.filename else ""
        super().__init__(f"{what}: {error.strerror}{where}")
        self.step: Step = step


class Ending(Struct, frozen=True):
    """How a worker ended, as far as anybody saw."""

    status: int | None
    """As waitpid returns it; None if nobody could see it."""
    stopped: str = ""
    """Why it was stopped; empty if it ended of itself."""
    system_peak: int | None = None
    ran: float | None = None
    note: str = ""
    """What else is known of its end."""
    left: tuple[str, ...] = ()
    """Processes that the program left behind, and that were ended."""
    rebooted: bool = False
    """Whether it ended with the machine."""
    how: str = ""
    """How it had started, where that is known only now."""
    outcome: Outcome | None = None
    """What the broker of another machine has judged, where the program ran there."""


class Reports(Protocol):
    """What the broker hears of its attempts."""

    def started(self, attempt_id: str, keeper: Process, worker: Process, how: str) -> None:
        """The worker exists, and its program runs now."""

    def sampled(self, attempt_id: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        """What its process tree adds to the machine's memory, and how many processors it keeps
        busy."""

    def ended(self, attempt_id: str, ending: Ending) -> None:
        """The last process of the tree was seen to end."""

    def never_ran(self, attempt_id: str, why: str) -> None:
        """The attempt is over, and no line of the program has run."""

    def nurseries_changed(self) -> None:
        """A nursery is warm now, or is no longer."""


class Backend(Protocol):
    """Runs attempts, warm where it can. What is asked of an attempt that has ended is ignored."""

    def report_to(self, reports: Reports) -> None:
        """Name who hears of the attempts; called once, before anything else."""

    def unready(self, job: Job, room: Callable[[], int]) -> str:
        """Why this job cannot be launched yet, such as a nursery that warms up; empty if it can.

        A nursery is begun only if there is `room` for it in main memory. Raises LaunchFailed.
        """

    def launch(self, job: Job, devices: Sequence[Device], streams: Sequence[int] | None) -> None:
        """Start the current attempt of a job, whose lease is committed; it is on these devices.

        The `streams` stay the caller's; without them the program writes to log files. Raises
        LaunchFailed.
        """

    def offer(self, job: Job, devices: Sequence[Device]) -> str:
        """Offer the job's lease to the process that is to hold it itself; returns the terms that
        this process is sent. Raises LaunchFailed."""

    def check_offer(self, attempt_id: str) -> None:
        """The process that was offered a lease has hung up or gives it back: look which. An offer
        that was not taken is withdrawn."""

    def adopt(self, job: Job, rebooted: bool) -> None:
        """Take over an attempt that an earlier broker has launched, or may have. `rebooted`: the
        machine was restarted since, so none of its processes is left."""

    def stop(self, attempt_id: str, why: str, grace: float) -> None:
        """Ask the tree to end; kill it after `grace` seconds."""

    def abandon(self, attempt_id: str, why: str) -> None:
        """Give up an attempt whose program has not begun; does nothing if it has."""

    def signal(self, attempt_id: str, number: int) -> None:
        """Send a signal to the program and what shares its process group."""

    def pause(self, attempt_id: str) -> None:
        """Stop the tree where it is; its time limit stands still meanwhile."""

    def resume(self, attempt_id: str) -> None:
        """Let a paused tree go on."""

    def set_duty(self, attempt_id: str, share: float) -> None:
        """Let the tree run for this share of the time only, above 0 and at most 1."""

    def confine(self, attempt_id: str, processors: tuple[int, ...]) -> None:
        """Keep the tree on these of its processors."""

    def forget(self, attempt_id: str) -> None:
        """Remove what is kept of an attempt: all that matters of it is in the ledger."""

    def sweep(self, live: Set[str]) -> None:
        """Remove what killed processes have left of attempts that are not `live`."""

    def nurseries(self) -> tuple[NurseryRow, ...]:
        """The warm processes, and those that could not be made."""

    def standing_nurseries(self) -> tuple[Nursery, ...]:
        """The warm processes that hold main memory, or will when they are warm."""

    def nursery_of(self, job: Job) -> int | None:
        """The nursery from which this job comes, by its process; 0 if it is not there yet, None if
        the job comes from none."""

    def reconsider_nurseries(self, room: int) -> bool:
        """Whether a nursery for which there was no room can be begun now that there is so much: all
        that wait are to be asked about again."""

    def end_nursery(self, pid: int) -> None:
        """End an idle nursery; it holds its memory until it was seen to have gone."""

    def close(self) -> None:
        """End the warm processes; workers go on."""
