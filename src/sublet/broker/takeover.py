"""What an earlier broker has left: attempts to adopt, clients that may come back, old jobs."""

import os
from typing import TYPE_CHECKING

from sublet.backends.local import leftovers
from sublet.broker import job_clients
from sublet.broker.worker_spec import mark
from sublet.domain.job import Job, Paused, Running, Waiting
from sublet.keeper import process_tree

if TYPE_CHECKING:
    from sublet.broker.broker import Broker

_MOST_FINISHED = 10_000
"""So many finished jobs are remembered; older ones go when a broker starts."""
_COMES_BACK = 10.0
"""Seconds in which a process that waits for a lease of its own finds the next broker."""


def take_over(broker: "Broker") -> None:
    """Go on where it stopped, in this boot of the machine or an earlier one."""
    ledger, boot = broker.work.ledger, process_tree.boot()
    rebooted = ledger.fact("boot") not in (None, boot)
    ledger.note("boot", boot)
    ledger.commit()
    for job in broker.state.jobs():
        if job.holds is not None:
            _adopt(broker, job, rebooted)
        elif job.spec.client is None:
            if isinstance(job.state, Waiting):
                broker.plan_after(broker.queue.delay(job), job.id)
        elif not client_lives(job):
            broker.withdraw(job, job_clients.GONE)
        else:
            await_client(broker, job)
    broker.nested_leases.adopt()
    leftovers.sweep(broker.home.runs, {job.attempt_id for job in broker.state.jobs()})
    _prune(broker)


def _adopt(broker: "Broker", job: Job, rebooted: bool) -> None:
    assert job.holds is not None
    if job.spec.in_process is not None:
        taken = isinstance(job.holds, Running)
        broker.in_process_leases.adopt(job.attempt_id, job.spec.in_process, taken, rebooted)
        return
    broker.expect(job, job.holds.tick)
    known = job.holds if isinstance(job.holds, Running) else None
    broker.launcher.adopt(
        job.attempt_id,
        mark(job),
        rebooted,
        None if known is None else known.keeper,
        None if known is None else known.worker,
    )
    # The ledger decides: its keeper may have heard what was never written down, and not have heard
    # what was.
    broker.launcher.pause(job.attempt_id, isinstance(job.state, Paused))
    if job.holds.stopping:
        broker.launcher.stop(job.attempt_id, job.holds.stopping, job.spec.grace)


def await_client(broker: "Broker", job: Job) -> None:
    """A waiting job whose client has not come back: it is dropped if the client ends."""
    assert job.spec.client is not None

    def drop() -> None:
        now = broker.state.get(job.id)
        if now is not None and isinstance(now.state, Waiting) and job.id not in broker.clients:
            broker.withdraw(job, job_clients.GONE)

    if job.spec.in_process is not None:
        # A process goes on when it has given up waiting, so it is known by not coming back.
        broker.reactor.call_later(_COMES_BACK, drop)
        return
    descriptor = os.pidfd_open(job.spec.client.pid)

    def gone() -> None:
        broker.reactor.unwatch(descriptor)
        os.close(descriptor)
        drop()

    broker.reactor.watch(descriptor, gone)


def client_lives(job: Job) -> bool:
    """Whether there is still somebody for whom the job is done."""
    client = job.spec.client
    return client is not None and process_tree.is_alive(client.pid, client.start)


def _prune(broker: "Broker") -> None:
    """Forget the oldest of the finished jobs, and what they have said."""
    forgotten = broker.work.ledger.prune(_MOST_FINISHED)
    broker.work.ledger.commit()
    if forgotten:
        kept = broker.work.ledger.numbers()
        for path in broker.home.logs.iterdir():
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) not in kept:
                path.unlink(missing_ok=True)
