"""Keeps the tasks of a gang together: looks at what became of one, and sees to the others.

Owns which jobs are of which gang; `policy.gangs` decides. What it does follows from the ledger
alone, so the next broker goes on where this one was killed.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from sublet.broker.effects import Launch
from sublet.broker.events import Granted, Reopened
from sublet.broker.gang_watch import GangWatch
from sublet.broker.job_control import JobControl
from sublet.broker.ports import Ports
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import PORT_UNSEEN, Again, Finished, Gang, Job, Outcome, Starting, Waiting
from sublet.keeper import process_tree
from sublet.policy import gangs, retry
from sublet.policy.gangs import TaskProgress
from sublet.reactor import Reactor

DONE = "its cluster has done its work"
"""Why a task that serves others is ended, which is no failure."""
_CLIENT_GONE = "its client ended"


@dataclass(eq=False)
class Gangs:
    """The gangs that have live jobs."""

    _work: UnitOfWork
    _control: JobControl
    _ports: Ports
    _watch: GangWatch
    _clock: Clock
    _reactor: Reactor

    def __post_init__(self) -> None:
        self._gangs: dict[int, Gang] = {}
        """By the number of each job."""
        self._clients: dict[int, int] = {}
        """Descriptors of the processes with which gangs end, by gang."""

    def adopt(self) -> None:
        """Take over what an earlier broker has left."""
        for job in self._work.state.holding():
            if job.spec.gang is not None and isinstance(job.holds, Starting):
                self._ports.keep(job.id, job.holds.lease.ports[job.spec.gang.at])
        self.note([job.id for job in self._work.state.jobs()])

    def note(self, numbers: Iterable[int]) -> None:
        """Something has become of these jobs: see to the others of their gangs."""
        changed: dict[int, Gang] = {}
        for number in numbers:
            job = self._work.state.get(number)
            if job is not None and job.spec.gang is not None and number not in self._gangs:
                self._join(job.spec.gang)
            if job is None or not isinstance(job.holds, Starting):
                self._ports.release(number)
            if (gang := self._gangs.get(number)) is not None:
                changed[gang.first] = gang
        for gang in changed.values():
            self._settle(gang)

    def judge(self, job: Job, outcome: Outcome) -> Outcome:
        """How a task has ended: one that was ended because its cluster is done has not failed,
        whatever it made of that. Of one that has ended well it is noted if it did so alone."""
        held = job.holds
        if held is not None and held.stopping == DONE:
            return replace(outcome, cause="stopped", code=0, message=DONE)
        well = outcome.cause == "exited" and outcome.code == 0
        if well and not self._watch.was_seen(job):
            return replace(outcome, message=PORT_UNSEEN)
        return outcome

    def terms(self, job: Job, outcome: Outcome, own: Again | None) -> Again | None:
        """The terms on which a task that has ended is tried again; `own` are those that it would
        have if it were alone."""
        gang = job.spec.gang
        assert gang is not None
        others = [one for one in self._members(gang) if one is not None and one.id != job.id]
        if any(_progress(one) == "failed" for one in others):
            return None
        if any(_progress(one) == "waits" for one in others):
            return Again("started again with its cluster", forgiven=True)
        if outcome.cause == "stopped" and outcome.code == 0:
            return None
        return own

    def count_failures(self, job: Job) -> Job:
        """The job with all failures of its gang: what bounds its restarts."""
        gang = job.spec.gang
        assert gang is not None
        return replace(job, failures=sum(one.failures for one in self._members(gang) if one))

    def start_anew(self, job: Job) -> bool:
        """Start a task again whose worker never ran, under the lease that it had; False if its gang
        does not want it now."""
        gang, held = job.spec.gang, job.holds
        assert gang is not None
        now = self._work.state[job.id]
        others = [one for one in self._members(gang) if one is not None and one.id != job.id]
        if (
            held is None
            or held.stopping
            or not isinstance(now.state, Waiting)
            or now.state.delay
            or any(_progress(one) not in ("holds", "done") for one in others)
            or self._control.closing
        ):
            return False
        granted = Granted(job.id, self._clock.wall(), self._clock.now(), held.lease)
        self._work.happened(granted, Launch(job.id))
        return True

    def close(self) -> None:
        """The broker ends: let go what is held for gangs."""
        self._ports.close()
        for gang in {gang.first: gang for gang in self._gangs.values()}.values():
            self._close_client(gang)

    def _join(self, gang: Gang) -> None:
        self._gangs |= dict.fromkeys(gang.numbers, gang)
        if gang.client is None:
            return
        gone = partial(self._client_gone, gang)
        try:
            descriptor = os.pidfd_open(gang.client.pid)
        except OSError:
            self._reactor.call_later(0.0, gone)
            return
        self._clients[gang.first] = descriptor
        if process_tree.start_time(gang.client.pid) != gang.client.start:
            self._reactor.call_later(0.0, gone)
        else:
            self._reactor.watch(descriptor, gone)

    def _leave(self, gang: Gang) -> None:
        for number in gang.numbers:
            del self._gangs[number]
            self._ports.release(number)
        self._close_client(gang)

    def _close_client(self, gang: Gang) -> None:
        if (descriptor := self._clients.pop(gang.first, None)) is not None:
            self._reactor.unwatch(descriptor)
            os.close(descriptor)

    def _client_gone(self, gang: Gang) -> None:
        self._close_client(gang)
        for job in self._live(gang):
            self._end(job, _CLIENT_GONE)

    def _settle(self, gang: Gang) -> None:
        members = self._members(gang)
        tasks = [
            TaskProgress(role, "done" if one is None else _progress(one))
            for (role, _), one in zip(gang.tasks, members, strict=True)
        ]
        found = gangs.settle(tasks)
        jobs = {at: one for at, one in enumerate(members) if one is not None}
        why = DONE if found.why == "done" else self._blame(gang)
        for at in (*found.stop, *found.withdraw):
            self._end(jobs[at], why)
        if found.reopen:
            self._reopen(gang, [jobs[at] for at in found.reopen if at in jobs])
        if not self._live(gang):
            self._leave(gang)

    def _end(self, job: Job, why: str) -> None:
        held = job.holds
        if held is None:
            code = 0 if why == DONE else 143
            self._control.withdraw(job, why, code=code)
        elif not held.stopping:
            self._control.stop(job, why)

    def _reopen(self, gang: Gang, ended: list[Job]) -> None:
        """Those that were done run again. The ledger has forgotten their environment: it is that
        of the others."""
        around = self._live(gang)[0].spec.surroundings
        for job in ended:
            state = Waiting(self._clock.wall(), self._clock.now())
            spec = replace(job.spec, surroundings=around)
            again = replace(job, spec=spec, state=state, attempt=job.attempt + 1, false_starts=0)
            self._work.happened(Reopened(self._work.ledger.common.share(again)))

    def _blame(self, gang: Gang) -> str:
        """Which task has failed, or waits again, and how."""
        failed: list[tuple[float, int, str]] = []
        for one in self._members(gang):
            if one is None or _progress(one) not in ("failed", "waits"):
                continue
            role, index = gang.tasks[one.id - gang.first]
            if isinstance(one.state, Finished):
                at, how = one.state.at, retry.ending(one.state.outcome)
            elif one.past:
                at, how = one.past[-1].at, retry.ending(one.past[-1].outcome)
            else:
                at, how = one.submitted, "it could not be started"
            failed.append((at, one.id, f"{role} {index} (#{one.id}): {how}"))
        return min(failed)[2] if failed else "its cluster is started again"

    def _members(self, gang: Gang) -> list[Job | None]:
        """Its jobs as they are now; None for one that the ledger has forgotten."""
        return [self._work.find(number) for number in gang.numbers]

    def _live(self, gang: Gang) -> list[Job]:
        found = (self._work.state.get(number) for number in gang.numbers)
        return [job for job in found if job is not None]


def _progress(job: Job) -> gangs.Progress:
    if isinstance(job.state, Finished):
        return "done" if job.state.outcome.code == 0 else "failed"
    return "waits" if job.holds is None else "holds"
