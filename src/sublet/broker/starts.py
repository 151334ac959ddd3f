"""From a grant to a worker that starts, or to a lodger that takes its lease."""

import os
from typing import TYPE_CHECKING

import msgspec

from sublet.backends.local import logs
from sublet.backends.local.nurseries import NurseryKey
from sublet.broker.clients import close
from sublet.broker.events import AttemptEnded
from sublet.broker.orders import inside_lease, mark, text_environment, worker_spec
from sublet.domain.job import Job, Outcome, Process, Starting
from sublet.domain.lease import Lease
from sublet.wire import messages as say

if TYPE_CHECKING:
    from sublet.broker.broker import Broker


class Starts:
    """The broker's word to start. What it starts is in the ledger, lease and all."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def unready(self, job: Job) -> str:
        """Why a job could not be started for the moment; empty if it could.

        A job that can start warm waits for its nursery, which also settles what that one holds.
        """
        if job.spec.client is not None and job.id not in self._broker.clients:
            return "its client has not come back yet"
        if self._broker.clients.is_stopped(job.id):
            return "its command is stopped: `fg` or SIGCONT lets it go on"
        key = self._nursery_key(job)
        if key is None or job.spec.cold:
            return ""
        nursery = self._broker.launcher.nurseries.find(key)
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
            broker.attempts.never_ran(job.run, "its client left")
            return
        lease = job.state.lease
        if job.spec.lodger is not None:
            self._offer(job, lease, job.spec.lodger)
            return
        try:
            if streams is None:
                streams = logs.open_streams(str(broker.home.logs), job.run, job.spec.split)
            broker.launcher.start(
                run=job.run,
                record=msgspec.json.encode(job),
                spec=worker_spec(job, lease, broker.devices[lease.device], broker.home),
                mark=mark(job),
                streams=streams,
                cold=job.spec.cold,
                key=self._nursery_key(job),
            )
        except OSError as error:
            self._failed(job, error)
        finally:
            if own and streams is not None:
                close(streams)

    def _offer(self, job: Job, lease: Lease, lodger: Process) -> None:
        """Nothing is to be started: the process that waits takes its lease itself."""
        broker = self._broker
        try:
            broker.lodgers.offer(job.run, msgspec.json.encode(job), lodger)
        except OSError as error:
            self._failed(job, error)
            return
        inside = inside_lease(job, lease, broker.devices[lease.device], broker.home)
        broker.clients.tell(job.id, say.Offered(inside.to_json()))

    def _failed(self, job: Job, error: OSError) -> None:
        broker = self._broker
        told = Outcome("stopped", 126, message=f"it could not be started: {error.strerror}")
        event = AttemptEnded(job.id, job.attempt, broker.clock.wall(), told)
        broker.close_job(broker.books.happened(event))

    def _nursery_key(self, job: Job) -> NurseryKey | None:
        """The nursery this job could come from; None for a program that is not Python."""
        python = job.spec.program.python
        if not python:
            return None
        return self._broker.launcher.nurseries.key(os.fsdecode(python), text_environment(job))
