"""What an earlier broker has left: attempts to adopt, clients that may come back, old jobs."""

import shutil
from functools import partial

from sublet.backends.backend import Backend
from sublet.broker import job_clients
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.job_clients import client_lives
from sublet.broker.job_control import JobControl
from sublet.broker.queue import Queue
from sublet.broker.unit_of_work import UnitOfWork
from sublet.domain.job import Job, Paused, Waiting
from sublet.home import Home
from sublet.keeper import process_tree
from sublet.reactor import Reactor

_MOST_FINISHED = 10_000
"""So many finished jobs are remembered; older ones go when a broker starts."""


def take_over(
    work: UnitOfWork,
    backend: Backend,
    control: JobControl,
    usage: DeviceUsage,
    queue: Queue,
    reactor: Reactor,
) -> None:
    """Go on where the earlier broker stopped, in this boot of the machine or an earlier one."""
    boot = process_tree.boot()
    rebooted = work.ledger.fact("boot") not in (None, boot)
    work.ledger.note("boot", boot)
    work.ledger.commit()
    for job in work.state.jobs():
        if job.holds is not None:
            _adopt(job, rebooted, backend, usage)
        elif job.spec.client is None:
            if isinstance(job.state, Waiting) and (delay := queue.delay(job)):
                reactor.call_later(delay, partial(work.touch, job.id))
        elif not client_lives(job):
            control.withdraw(job, job_clients.GONE)
        else:
            control.await_client(job)


def _adopt(job: Job, rebooted: bool, backend: Backend, usage: DeviceUsage) -> None:
    assert job.holds is not None
    if job.spec.in_process is None:
        usage.expect_end(job, job.holds.tick)
    backend.adopt(job, rebooted)
    if job.spec.in_process is not None:
        return
    # The ledger decides: its keeper may have heard what was never committed, and not have heard
    # what was.
    if isinstance(job.state, Paused):
        backend.pause(job.attempt_id)
    else:
        backend.resume(job.attempt_id)
    if job.holds.stopping:
        backend.stop(job.attempt_id, job.holds.stopping, job.spec.grace)


def prune(work: UnitOfWork, home: Home) -> None:
    """Forget the oldest of the finished jobs, and their logs."""
    forgotten = work.ledger.prune(_MOST_FINISHED)
    work.ledger.commit()
    if forgotten:
        kept = work.ledger.numbers()
        for path in home.logs.iterdir():
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) not in kept:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
