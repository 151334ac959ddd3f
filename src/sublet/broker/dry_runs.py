"""What would become of a job if it were sent now; nothing does."""

from dataclasses import dataclass

from sublet.broker.device_usage import DeviceUsage
from sublet.broker.queue import Queue
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.unit_of_work import UnitOfWork
from sublet.clock import Clock
from sublet.domain.job import Job, JobSpec, Waiting
from sublet.domain.lease import Lease
from sublet.policy import admission
from sublet.policy.wait_reasons import Reasons
from sublet.wire import messages


@dataclass(eq=False)
class DryRuns:
    """Plans with one job more than there are."""

    _work: UnitOfWork
    _queue: Queue
    _usage: DeviceUsage
    _estimator: SizeEstimator
    _clock: Clock

    def plan(self, spec: JobSpec) -> messages.WouldStart:
        """Where and when a job would start, which was found to be possible. Its place in the queue
        is the last; it leaves no trace there."""
        capacities, now, wall = self._usage.capacities(), self._clock.now(), self._clock.wall()
        job = Job(self._work.next_id, "", spec, wall, Waiting(wall, now))
        queue = self._queue.wait_queue
        try:
            queue.put(self._estimator.candidate(job, capacities, now, held=""))
            plan = admission.plan(capacities, queue, now)
            reasons = Reasons(capacities, queue, now, [job.id])
            reason, start = reasons.why(job.id, estimate=False), reasons.start(job.id)
            explanation = self._estimator.explain(job, capacities)
        finally:
            queue.take(job.id)
            self._estimator.forget(job.id)
        leases = tuple(
            Lease(grant.device, grant.size.ceiling, grant.charge, grant.size.basis)
            for grant in plan.grants
            if grant.job == job.id
        )
        stops = tuple(one.job for one in plan.preempt if one.wanted_by == job.id)
        if leases:
            reason, start = "", 0.0
        return messages.WouldStart(leases, reason, start, stops, explanation)
