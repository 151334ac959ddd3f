"""Admission over many steps: arrivals, ends, strangers, stops, in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from sublet.policy.capacity import Service
from sublet.policy.wait_queue import AGEING, Priority
from support.world import World, candidate, offer

CAPACITIES = {"gpu0": 64, "gpu1": 100, "cpu": 48}
PLACES = (("gpu0", "gpu1"), ("gpu0",), ("gpu1",), ("cpu",))


class Queue(RuleBasedStateMachine):
    """Everything that can happen to a queue; after each step it plans, and all is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(CAPACITIES)
        self.next = 1

    @rule(
        sizes=st.tuples(st.integers(1, 40), st.integers(1, 100)),
        alike=st.booleans(),
        where=st.sampled_from(PLACES),
        priority=st.sampled_from(["high", "normal", "normal", "low"]),
        service=st.sampled_from(["guaranteed", "guaranteed", "opportunistic"]),
        expected=st.none() | st.integers(1, 60),
        spread=st.booleans(),
    )
    def submit(
        self,
        sizes: tuple[int, int],
        alike: bool,
        where: tuple[str, ...],
        priority: Priority,
        service: Service,
        expected: int | None,
        spread: bool,
    ) -> None:
        if alike:
            offers = [offer(min(sizes[0], 48), *where)]
        else:
            offers = [
                offer(min(size, CAPACITIES[name]), name)
                for size, name in zip(sizes, where, strict=False)
            ]
        self.world.submit(
            candidate(
                self.next,
                *offers,
                since=self.world.now,
                priority=priority,
                service=service,
                expected=expected,
                spread=spread,
            )
        )
        self.next += 1

    @rule(seconds=st.sampled_from([0.5, 3.0, 12.0, 40.0, AGEING]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: bool(self.world.holdings))
    @rule(data=st.data(), again=st.booleans())
    def end(self, data: st.DataObject, again: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.world.holdings)))
        stopping = self.world.holdings[job][1].stopping
        if stopping and again:
            self.world.requeue(job)
        else:
            self.world.end(job)

    @precondition(lambda self: bool(self.world.holdings))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """Somebody cancels it; it has not ended yet."""
        job = data.draw(st.sampled_from(sorted(self.world.holdings)))
        where, holding = self.world.holdings[job]
        self.world.holdings[job] = (where, replace(holding, stopping=True))

    @rule(name=st.sampled_from(sorted(CAPACITIES)), share=st.sampled_from([0, 0, 1, 2, 5]))
    def strangers(self, name: str, share: int) -> None:
        capacity = self.world.devices[name].capacity
        self.world.strangers[name] = capacity * share // 4

    @precondition(lambda self: len(self.world.queue) > 0)
    @rule(data=st.data(), held=st.sampled_from(["", "paused"]))
    def hold(self, data: st.DataObject, held: str) -> None:
        one = data.draw(st.sampled_from(list(self.world.queue)))
        self.world.submit(replace(one, held=held))

    @precondition(lambda self: len(self.world.queue) > 0)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(list(self.world.queue)))
        self.world.queue.take(one.job)
        self.world.finished.add(one.job)

    @invariant()
    def plans_hold(self) -> None:
        self.world.decide()

    def teardown(self) -> None:
        self.world.drain()


TestQueue = Queue.TestCase
# 250 stories of up to 50 steps: more than ten thousand plans, each made three times.
TestQueue.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
TestQueue = pytest.mark.slow(TestQueue)
