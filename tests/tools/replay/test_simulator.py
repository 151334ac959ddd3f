"""Work, contention and the policies that are compared."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from sublet.errors import InternalError
from sublet.policy.admission import Rules
from sublet.tools.replay import trace
from sublet.tools.replay.comparison import CONTENTION, SAID, compare, passed
from sublet.tools.replay.contenders import Greedy, InOrder, Ours
from sublet.tools.replay.simulator import Policy, Replayed, SimulatedRun, Start, replay
from sublet.tools.replay.trace import TraceJob
from sublet.units import GiB

EXCERPT = Path(__file__).parent / "data" / "philly_excerpt.csv"
CAPACITY = 16 * GiB
RULES = Rules()


def job(number: int, submit: float, duration: float, share: float, busy: float = 0.5) -> TraceJob:
    return TraceJob(number, submit, duration, share, busy)


def run(
    jobs: list[TraceJob], policy: Policy, contention: str = "none", devices: int = 1
) -> Replayed:
    return replay(jobs, devices, policy, CONTENTION[contention])


def spans(of: Replayed) -> list[tuple[float, float]]:
    return [(round(one.start, 6), round(one.end, 6)) for one in of.runs]


def excerpt() -> list[TraceJob]:
    rows = trace.clusters(trace.read(EXCERPT))["103959"]
    return trace.jobs(rows, CAPACITY, 1.0, 1)


def every_policy(devices: int = 1) -> list[Policy]:
    return [
        InOrder(devices, 1),
        InOrder(devices, 4),
        InOrder(devices, CAPACITY),
        Greedy(devices, CAPACITY),
        Ours(devices, CAPACITY, RULES),
    ]


def test_one_at_a_time_runs_one_after_another() -> None:
    jobs = [job(0, 0, 10, 0.1), job(1, 0, 5, 0.1), job(2, 30, 5, 0.1)]
    assert spans(run(jobs, InOrder(1, 1), "full")) == [(0, 10), (10, 15), (30, 35)]


def test_a_large_job_takes_several_slots() -> None:
    jobs = [job(0, 0, 10, 0.6), job(1, 0, 10, 0.3), job(2, 0, 10, 0.2)]
    assert spans(run(jobs, InOrder(1, 4))) == [(0, 10), (10, 20), (10, 20)]


def test_in_order_nobody_passes_and_greedily_whoever_fits_does() -> None:
    jobs = [job(0, 0, 10, 0.6), job(1, 1, 10, 0.6), job(2, 2, 10, 0.3)]
    assert spans(run(jobs, InOrder(1, CAPACITY))) == [(0, 10), (10, 20), (10, 20)]
    for policy in (Greedy(1, CAPACITY), Ours(1, CAPACITY, RULES)):
        assert spans(run(jobs, policy)) == [(0, 10), (10, 20), (2, 12)]


def test_jobs_slow_each_other_down_only_as_far_as_the_device_is_busy() -> None:
    """Two that are busy for 0.8 of the time each work at 1 / 1.6 of their speed together."""
    jobs = [job(0, 0, 10, 0.4, 0.8), job(1, 0, 20, 0.4, 0.8)]
    assert spans(run(jobs, Greedy(1, CAPACITY), "none")) == [(0, 10), (0, 20)]
    assert spans(run(jobs, Greedy(1, CAPACITY), "drawn")) == [(0, 16), (0, 26)]
    assert spans(run(jobs, Greedy(1, CAPACITY), "full")) == [(0, 20), (0, 30)]
    light = [job(0, 0, 10, 0.4, 0.5), job(1, 0, 20, 0.4, 0.5)]
    assert spans(run(light, Greedy(1, CAPACITY), "drawn")) == [(0, 10), (0, 20)]


def test_the_memory_in_use_is_a_mean_over_time() -> None:
    jobs = [job(0, 0, 10, 0.5), job(1, 0, 5, 0.5)]
    assert run(jobs, Greedy(1, CAPACITY)).memory == pytest.approx(0.75)
    assert run(jobs, Greedy(2, CAPACITY), devices=2).memory == pytest.approx(0.375)


class Careless:
    """Starts everything at once."""

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def came(self, job: TraceJob, now: float) -> None:
        self.waiting.append(job.number)

    def left(self, job: TraceJob, device: int, now: float) -> None:
        pass

    def decide(self, now: float) -> Iterable[Start]:
        starts, self.waiting = [(number, 0) for number in self.waiting], []
        return starts


class Idle(Careless):
    """Starts nothing."""

    def decide(self, now: float) -> Iterable[Start]:
        return []


def test_a_policy_that_gives_away_too_much_or_forgets_a_job_is_caught() -> None:
    jobs = [job(0, 0, 1, 0.6), job(1, 0, 1, 0.6)]
    with pytest.raises(InternalError, match="does not fit"):
        run(jobs, Careless())
    with pytest.raises(InternalError, match="2 jobs wait and nothing runs"):
        run(jobs, Idle())


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("contention", ["none", "drawn", "full"])
def test_every_job_of_a_real_trace_runs_to_its_end(devices: int, contention: str) -> None:
    jobs = excerpt()
    for policy in every_policy(devices):
        told = run(jobs, policy, contention, devices)
        assert len(told.runs) == len(jobs)
        for one, what in zip(jobs, told.runs, strict=True):
            assert one.submit == what.submit <= what.start
            assert what.end - what.start >= one.duration * (1 - 1e-9)


def test_ours_beats_one_at_a_time_slots_and_best_fit_and_never_breaks_its_bound() -> None:
    told = {one.policy: one for one in compare(excerpt(), 1, CAPACITY, [*SAID], ["drawn"], RULES)}
    ours = told["ours"]
    assert ours.broken == 0
    for other in ("one", "slots2", "slots4", "best"):
        assert ours.mean < told[other].mean
    assert ours.longest < told["greedy"].longest


def test_on_several_devices_the_bound_holds_too() -> None:
    policy = Ours(3, CAPACITY, Rules(patience=60.0, limit=120.0, stretch=0.0))
    rows = trace.clusters(trace.read(EXCERPT))["103959"]
    run(trace.jobs(rows, CAPACITY, 4.0, 1), policy, "drawn", 3)
    assert policy.broken == 0


def test_who_passes_after_the_bound_is_counted_from_what_happened_alone() -> None:
    rules = Rules(patience=5.0, limit=10.0, stretch=0.0)
    first = SimulatedRun(0.0, 0.0, 30.0, 0)
    large = SimulatedRun(1.0, 30.0, 40.0, 0)
    assert passed([first, large, SimulatedRun(2.0, 10.9, 12.0, 0)], rules) == 0
    assert passed([first, large, SimulatedRun(2.0, 11.0, 12.0, 0)], rules) == 1
    assert passed([first, large, SimulatedRun(2.0, 30.0, 31.0, 0)], rules) == 0


def test_the_same_seed_gives_the_same_figures() -> None:
    one, other = (run(excerpt(), Ours(1, CAPACITY, RULES), "drawn").runs for _ in range(2))
    assert one == other
