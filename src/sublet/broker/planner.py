"""Plans who gets a lease and applies the plan; `policy.admission` is who decides."""

from dataclasses import dataclass

from msgspec.structs import replace

from sublet.broker.dependencies import Dependencies
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.effects import Launch, Notify, SettleNested
from sublet.broker.events import Granted
from sublet.broker.job_clients import JobClients
from sublet.broker.job_control import JobControl
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.ports import Ports
from sublet.broker.queue import Queue
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.device import split_names
from sublet.domain.job import Job
from sublet.domain.lease import Lease
from sublet.policy import admission
from sublet.policy.admission import Grant, Plan
from sublet.policy.wait_reasons import Reasons
from sublet.wire import messages


@dataclass(eq=False)
class Planner:
    """Brings the wait queue up to date, plans, and turns grants into leases."""

    _work: UnitOfWork
    _queue: Queue
    _usage: DeviceUsage
    _nested_leases: NestedLeases
    _dependencies: Dependencies
    _control: JobControl
    _clients: JobClients
    _ports: Ports
    _clock: Clock

    @property
    def due(self) -> bool:
        """Whether a new plan could start a waiting job."""
        return bool(self._work.state.waits or self._queue.wait_queue or self._queue.behind)

    def plan(self) -> Plan:
        """Who gets a lease now. Withdraws jobs that can never start."""
        capacities, now = self._usage.capacities(), self._clock.now()
        queue, standing = self._queue.wait_queue, self._usage.standing
        for number in self._work.take_touched():
            self._queue.touch(number)
        for job in self._queue.update(capacities):
            self._control.withdraw(job, self._dependencies.hopeless(job), "dependency")
        if self._usage.standing != standing:
            capacities = self._usage.capacities()  # A nursery was begun for one of them.
        for job, why in list(self._nested_leases.cramped(capacities, queue, now)):
            queue.take(job.id)
            self._control.withdraw(job, why)
        return admission.plan(capacities, queue, now)

    def follow(self, plan: Plan) -> None:
        """Apply a plan: grant, preempt, and tell the clients who listen why their jobs wait."""
        now, queue = self._clock.now(), self._queue.wait_queue
        by_job: dict[int, list[Grant]] = {}
        for grant in plan.grants:
            by_job.setdefault(grant.job, []).append(grant)
        ports: dict[int, tuple[int, ...]] = {}
        hosts = self._hosts(plan.grants)
        for number, grants in by_job.items():
            job = self._work.state[number]
            gang = job.spec.gang
            if gang is None:
                self._grant(job, grants)
                continue
            if gang.first not in ports:
                ports[gang.first] = self._ports.choose(gang)
            there = tuple(hosts[one] for one in gang.numbers) if job.spec.on else ()
            self._grant(job, grants, ports[gang.first], there)
        for preemption in plan.preempt:
            self._control.stop(self._work.state[preemption.job], "preempted")
        self._control.end_nurseries(plan.nurseries)
        queue.follow(plan, now)
        # The other jobs' reasons are made when somebody asks.
        present = [job for job in self._clients.jobs() if job in queue]
        if not present:
            return
        reasons = Reasons(self._usage.capacities(), queue, now, present)
        for number in present:
            self._clients.send_if_new(number, messages.Waits(reasons.why(number, estimate=False)))

    def _hosts(self, grants: tuple[Grant, ...]) -> dict[int, str]:
        """Where in a cluster each of these jobs is reached, by its number."""
        devices = self._usage.devices
        return {one.job: devices[one.device].address for one in grants if one.device in devices}

    def _grant(
        self,
        job: Job,
        grants: list[Grant],
        ports: tuple[int, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> None:
        """Give the job its lease, or one on each of several devices; `ports` and `hosts` are its
        gang's."""
        outer = self._work.state[job.spec.within].lease if job.spec.within is not None else None
        cpus = self._processors(job)
        lease, *also = [
            Lease(
                device=grant.device if outer is None else outer.device,
                ceiling=grant.size.ceiling,
                charge=grant.charge,
                basis=grant.size.basis,
                cpus=cpus,
                roomy=grant.size.roomy,
                most=grant.size.most,
            )
            for grant in sorted(grants, key=lambda grant: self._place(job, grant.device))
        ]
        lease = replace(lease, also=tuple(also), ports=ports, hosts=hosts)
        self._usage.expect_end(job, self._clock.now())
        self._work.decided(
            job,
            Granted(job.id, self._clock.wall(), self._clock.now(), lease),
            SettleNested(job.spec.within),
            Notify(job.id, messages.Granted(lease, job.attempt)),
            Launch(job.id),
        )

    def _place(self, job: Job, name: str) -> tuple[int, int, str]:
        """Where a device comes among those of a job: as it has named them, then by number."""
        device = self._usage.devices.get(name)
        if device is None:  # It is a lease.
            return 0, 0, name
        names = split_names(job.spec.device or device.kind)
        named = (at for at, word in enumerate(names) if device.goes_by(word))
        return next(named, len(names)), device.index or 0, name

    def _processors(self, job: Job) -> tuple[int, ...]:
        """The least used processors, as many as the job asked for; empty if it did not ask."""
        if job.spec.cpus is None or job.spec.on:
            return ()
        holding = self._work.state.holding()
        used = [cpu for other in holding if other.lease for cpu in other.lease.cpus]
        mine = sorted(job.spec.surroundings.affinity, key=lambda cpu: (used.count(cpu), cpu))
        return tuple(sorted(mine[: job.spec.cpus]))
