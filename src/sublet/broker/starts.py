"""From a grant to a worker that starts, or to a lodger that takes its lease."""

import errno
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from sublet.backends.local.nurseries import NurseryKey
from sublet.broker import log
from sublet.broker.events import Postponed
from sublet.broker.job_clients import close
from sublet.broker.worker_spec import inside_lease, mark, text_environment, worker_spec
from sublet.domain.job import Job, Process, Starting
from sublet.domain.lease import Lease
from sublet.keeper import output_files
from sublet.units import format_seconds
from sublet.wire import messages

if TYPE_CHECKING:
    from sublet.broker.broker import Broker


_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP)
"""What starting an interpreter fails with that is not there."""

Step = Literal["log", "start"]


class Setback(NamedTuple):
    """Something that the world does not let us do for any job: why, until when we do not try
    again, and for how many seconds that is."""

    why: str
    until: float
    pause: float


class Starts:
    """The broker's word to start. What it starts is in the ledger, lease and all.

    A step that fails here is the world's fault: no directory, no space, no descriptors, no more
    processes. It is waited out, by all jobs that need that step, with pauses that grow. A fault of
    the job itself is seen by its keeper, and ends it.
    """

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._setbacks: dict[Step, Setback] = {}
        """By the step that failed last; forgotten when it succeeds."""

    def unready(self, job: Job) -> str:
        """Why a job could not be started for the moment; empty if it could.

        A job that can start warm waits for its nursery, which also settles what that one holds.
        """
        if job.spec.client is not None and job.id not in self._broker.clients:
            return "its client has not come back yet"
        if self._broker.clients.is_stopped(job.id):
            return "its command is stopped: `fg` or SIGCONT lets it go on"
        if why := self._set_back(job):
            return why
        key = self._nursery_key(job)
        if key is None or job.spec.cold:
            return ""
        try:
            nursery = self._broker.launcher.nurseries.find(key)
        except OSError as error:
            # Without its interpreter, the job is started cold, and fails by itself.
            if error.errno not in _NO_PROGRAM:
                self._note("start", "its nursery cannot be started", error)
            return self._set_back(job)
        loading = "TensorFlow is being loaded, once for all programs"
        return loading if nursery.state == "warming up" else ""

    def start(self, number: int) -> None:
        """Act on the grant; the launcher reports what comes of it."""
        broker = self._broker
        job = broker.state.get(number)
        if job is None or not isinstance(job.state, Starting):
            return
        own = job.spec.client is None
        streams = None if own else broker.clients.streams(number)
        if not own and streams is None:
            # The client left between the grant and here; the attempt was never made.
            broker.attempts.never_ran(job.attempt_id, "its client left")
            return
        lease = job.state.lease
        if job.spec.in_process is not None:
            self._offer(job, lease, job.spec.in_process)
            return
        if self._set_back(job):
            self._postpone(job)  # Another one of the same turn has failed just now.
            return
        step: Step = "log"
        try:
            if streams is None:
                streams = output_files.open_streams(
                    str(broker.home.logs), job.attempt_id, job.spec.split
                )
                self._setbacks.pop("log", None)
            step = "start"
            broker.launcher.start(
                attempt_id=job.attempt_id,
                record=msgspec.json.encode(job),
                spec=worker_spec(job, lease, broker.devices[lease.device], broker.home),
                mark=mark(job),
                streams=streams,
                cold=job.spec.cold,
                key=self._nursery_key(job),
            )
            self._setbacks.pop("start", None)
        except OSError as error:
            what = "its log cannot be opened" if step == "log" else "it cannot be started"
            self._note(step, what, error)
            self._postpone(job)
        finally:
            if own and streams is not None:
                close(streams)

    def _offer(self, job: Job, lease: Lease, in_process: Process) -> None:
        """Nothing is to be started: the process that waits takes its lease itself."""
        broker = self._broker
        try:
            broker.in_process_leases.offer(job.attempt_id, msgspec.json.encode(job), in_process)
        except OSError as error:
            self._note("start", "its lease cannot be offered", error)
            self._postpone(job)
            return
        self._setbacks.pop("start", None)
        inside = inside_lease(job, lease, broker.devices[lease.device], broker.home)
        broker.clients.send(job.id, messages.Offered(inside.to_json()))

    def _set_back(self, job: Job) -> str:
        """Why nothing of the kind is tried at the moment; empty if it may be."""
        steps: tuple[Step, ...] = ("start",) if job.spec.client is not None else ("start", "log")
        for step in steps:
            setback = self._setbacks.get(step)
            if setback is not None and self._broker.clock.now() < setback.until:
                return setback.why
        return ""

    def _note(self, step: Step, what: str, error: OSError) -> None:
        """This step has failed: let some time go by before anybody tries it again."""
        broker = self._broker
        last = self._setbacks.get(step)
        pause = _FIRST_PAUSE if last is None else min(2 * last.pause, _LONGEST_PAUSE)
        where = f" ({error.filename})" if error.filename else ""
        why = f"{what}: {error.strerror}{where}; tries again in {format_seconds(pause)}"
        self._setbacks[step] = Setback(why, broker.clock.now() + pause, pause)
        log.note(why)
        self._look_again()
        broker.reactor.call_later(pause, self._look_again)

    def _look_again(self) -> None:
        self._broker.queue.touch_all()
        self._broker.work.changed = True

    def _postpone(self, job: Job) -> None:
        """Nothing of this attempt was started: have the job wait as before."""
        self._broker.launcher.forget(job.attempt_id)
        self._broker.work.happened(Postponed(job.id, job.attempt))
        self._broker.nested_leases.settle(job.spec.within)

    def _nursery_key(self, job: Job) -> NurseryKey | None:
        """The nursery this job could come from; None for a program that is not Python."""
        python = job.spec.program.python
        if not python:
            return None
        return self._broker.launcher.nurseries.key(os.fsdecode(python), text_environment(job))
