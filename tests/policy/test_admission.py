"""Who gets a lease, and what the others are told."""

import re
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.domain.job import Tenant
from sublet.domain.memory import Auto, Exactly, Grow, MemoryAsk
from sublet.policy.admission import Candidate, Grant, Plan, Room, eligible, most_ever, plan
from sublet.policy.sizing import SMALLEST, Evidence, size
from sublet.units import GiB, MiB
from support.jobs import asks, device

Rooms = tuple[Room, ...]
Line = tuple[Candidate, ...]


@dataclass(frozen=True)
class Case:
    """A machine and who waits for it."""

    rooms: Rooms
    waiting: Line


def room(name: str = "cpu", free: int = 2 * GiB, standing: int = 0, strangers: int = 0) -> Room:
    return Room(device(name, 2 * GiB), free, standing, strangers)


def candidate(
    job: int, ask: MemoryAsk, on: str | None = None, least: int = 0, held: str = ""
) -> Candidate:
    overhead = dict.fromkeys(("cpu", "gpu0", "gpu1"), 128 * MiB)
    return Candidate(job, ask, on, overhead, {}, least, held)


NAMES = ("gpu0", "gpu1", "cpu")
_sizes = st.integers(0, 2 * GiB)
_tenants = st.lists(
    st.builds(Tenant, st.just("other.py"), _sizes, st.none() | st.integers(1000, 2000)), max_size=4
).map(tuple)
_known = st.builds(
    Evidence,
    peak=st.none() | st.integers(0, GiB),
    runs=st.integers(1, 5),
    failed_at=st.just(0) | st.integers(SMALLEST, GiB),
)
_candidates = st.builds(
    Candidate,
    job=st.just(0),
    ask=asks,
    device=st.sampled_from([None, "gpu", *NAMES]),
    overhead=st.fixed_dictionaries(dict.fromkeys(NAMES, _sizes)),
    evidence=st.fixed_dictionaries({}, optional={"cpu": _known, "gpu": _known}),
    least=st.just(0) | st.integers(16, 30 * 1024).map(lambda amount: amount * MiB),
    held=st.sampled_from(["", "", "", "its client has not come back yet"]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = NAMES[-draw(st.integers(1, 3)) :]
    capacity = draw(st.integers(GiB, 24 * GiB))
    rooms = tuple(
        Room(
            device(name, capacity),
            free=draw(st.integers(-GiB, capacity)),
            standing=300 * MiB if name == "cpu" else 0,
            strangers=draw(_sizes),
            tenants=draw(_tenants),
        )
        for name in names
    )
    waiting = draw(st.lists(_candidates, max_size=6))
    return Case(rooms, tuple(replace(one, job=n) for n, one in enumerate(waiting, start=1)))


few = settings(max_examples=50)
"""Each case is a whole machine, so fewer will do."""


def fits(one: Candidate, there: Room, free: int) -> bool:
    """Whether so much is enough for this job there, by the rules of sizing alone."""
    known = one.evidence.get(there.device.kind, Evidence())
    overhead = one.overhead[there.device.id]
    ever = most_ever(there, overhead)
    return size(one.ask, there.device, free - overhead, ever, known, one.least) is not None


def possible(one: Candidate, rooms: Rooms) -> set[str]:
    """The devices that could give this job its lease if they were empty."""
    names = eligible(one.device, rooms)
    return {
        there.device.id
        for there in rooms
        if there.device.id in names and fits(one, there, there.device.capacity - there.standing)
    }


@few
@given(cases())
def test_no_device_is_charged_for_more_than_is_free(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    for there in case.rooms:
        charged = sum(g.charge for g in decided.grants if g.device == there.device.id)
        assert charged <= max(0, there.free)


@few
@given(cases())
def test_a_grant_is_charged_for_its_ceiling_and_for_its_process(case: Case) -> None:
    by_number = {one.job: one for one in case.waiting}
    for grant in plan(case.rooms, case.waiting).grants:
        one = by_number[grant.job]
        assert grant.charge == grant.size.ceiling + one.overhead[grant.device]
        assert grant.size.ceiling >= max(SMALLEST, one.least // MiB * MiB)
        assert grant.device in eligible(one.device, case.rooms)


@few
@given(cases())
def test_everybody_gets_a_lease_or_a_reason_and_never_both(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    granted = [grant.job for grant in decided.grants]
    assert sorted([*granted, *decided.reasons]) == [one.job for one in case.waiting]


@few
@given(cases())
def test_nobody_is_passed_over_on_a_device_they_could_go_to(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    granted_on = {grant.job: grant.device for grant in decided.grants}
    passed: set[str] = set()
    for one in case.waiting:
        if one.job in granted_on:
            assert granted_on[one.job] not in passed
        elif not one.held:
            passed |= possible(one, case.rooms)


@few
@given(cases())
def test_the_first_in_line_that_fits_is_never_kept_waiting(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    granted = {grant.job: grant for grant in decided.grants}
    free = {there.device.id: there.free for there in case.rooms}
    by_id = {there.device.id: there for there in case.rooms}
    taken: set[str] = set()
    for one in case.waiting:
        if one.held:
            continue
        names = eligible(one.device, case.rooms)
        if one.job in granted:
            free[granted[one.job].device] -= granted[one.job].charge
            continue
        assert not any(fits(one, by_id[name], free[name]) for name in names if name not in taken)
        taken |= possible(one, case.rooms)


@few
@given(cases())
def test_the_same_snapshot_gives_the_same_plan(case: Case) -> None:
    assert plan(case.rooms, case.waiting) == plan(case.rooms, case.waiting)


@few
@given(cases())
def test_a_reason_names_a_device_and_no_amount_in_it_is_negative(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    by_number = {one.job: one for one in case.waiting}
    for number, reason in decided.reasons.items():
        one = by_number[number]
        if one.held:
            assert reason == one.held
            continue
        names = eligible(one.device, case.rooms)
        if names:
            assert any(re.search(rf"on {name}[;,]", reason) for name in names)
        else:
            assert repr(one.device) in reason
        assert not re.search(r"-\d", reason)


@few
@given(cases())
def test_who_is_named_as_first_in_line_came_before_and_waits_for_that_very_device(
    case: Case,
) -> None:
    decided = plan(case.rooms, case.waiting)
    by_number = {one.job: one for one in case.waiting}
    for number, reason in decided.reasons.items():
        where = re.search(r"on (\w+);", reason)
        ahead = re.search(r"but #(\d+) is first in line|after #(\d+)$", reason)
        if where is not None and ahead is not None:
            first = int(ahead[1] or ahead[2])
            assert first < number
            assert first in decided.reasons
            assert where[1] in possible(by_number[first], case.rooms)


@few
@given(cases())
def test_a_job_that_can_never_fit_changes_nothing_for_the_others_and_is_told_so(
    case: Case,
) -> None:
    hopeless = {one.job for one in case.waiting if not one.held and not possible(one, case.rooms)}
    others = tuple(one for one in case.waiting if one.job not in hopeless)
    decided, without = plan(case.rooms, case.waiting), plan(case.rooms, others)
    assert decided.grants == without.grants
    assert {**decided.reasons, **without.reasons} == decided.reasons
    for number in hopeless:
        assert re.search("can give one program|there is no device", decided.reasons[number])


@few
@given(cases())
def test_a_held_job_changes_nothing_for_the_others(case: Case) -> None:
    free_to_start = tuple(one for one in case.waiting if not one.held)
    decided, without = plan(case.rooms, case.waiting), plan(case.rooms, free_to_start)
    assert decided.grants == without.grants
    assert {**decided.reasons, **without.reasons} == decided.reasons


@few
@given(cases())
def test_planning_again_after_acting_grants_nothing_more(case: Case) -> None:
    decided = plan(case.rooms, case.waiting)
    granted = {grant.job for grant in decided.grants}
    left = tuple(one for one in case.waiting if one.job not in granted)
    assert plan(_after(case.rooms, decided), left).grants == ()


def _after(rooms: Rooms, decided: Plan) -> Rooms:
    charged = {there.device.id: 0 for there in rooms}
    for grant in decided.grants:
        charged[grant.device] += grant.charge
    return tuple(
        Room(there.device, there.free - charged[there.device.id], there.standing, there.strangers)
        for there in rooms
    )


def test_three_fit_and_the_fourth_is_told_what_it_waits_for() -> None:
    waiting = tuple(candidate(number, Exactly(512 * MiB)) for number in (1, 2, 3, 4))
    decided = plan((room(),), waiting)
    assert [grant.job for grant in decided.grants] == [1, 2, 3]
    assert decided.reasons == {
        4: "needs 512 MiB + 128 MiB for its process on cpu; 128 MiB of 2.0 GiB free"
    }


def test_a_reason_names_the_largest_who_hold_the_device() -> None:
    tenants = (
        Tenant("small.py", 100 * MiB, 1),
        Tenant("big.py", 900 * MiB, 2),
        Tenant("middle.py", 300 * MiB, 3),
        Tenant("middle.py", 200 * MiB, 4),
    )
    there = Room(device(), 48 * MiB, 0, 500 * MiB, tenants)
    (reason,) = plan((there,), (candidate(9, Exactly(512 * MiB)),)).reasons.values()
    assert reason.endswith(
        "48.0 MiB of 2.0 GiB free; held by #2 big.py 900 MiB, #3 middle.py 300 MiB, "
        "#4 middle.py 200 MiB, other programs 500 MiB"
    )


def test_a_small_job_behind_a_large_one_waits_and_knows_for_whom() -> None:
    waiting = (candidate(1, Exactly(GiB)), candidate(2, Exactly(64 * MiB)))
    decided = plan((room(free=GiB),), waiting)
    assert decided.grants == ()
    assert decided.reasons[2].endswith("1.0 GiB of 2.0 GiB free, but #1 is first in line")


def test_who_is_first_on_another_device_is_not_named_for_this_one() -> None:
    rooms = (room("gpu0", free=512 * MiB), room("gpu1", free=GiB))
    waiting = (
        candidate(1, Exactly(GiB), on="gpu0"),
        candidate(2, Exactly(GiB), on="gpu1"),
        candidate(3, Exactly(64 * MiB)),
    )
    reasons = plan(rooms, waiting).reasons
    assert reasons[3] == (
        "needs 64.0 MiB + 128 MiB for its process on gpu1; "
        "1.0 GiB of 2.0 GiB free, but #2 is first in line"
    )
    assert "first in line" not in reasons[2]


def test_what_can_never_fit_holds_nobody_up_and_says_what_the_device_can_give() -> None:
    waiting = (
        candidate(1, Exactly(3 * GiB)),
        candidate(2, Auto(), least=3 * GiB),
        candidate(3, Grow(), least=3 * GiB),
        candidate(4, Exactly(GiB)),
    )
    decided = plan((room(),), waiting)
    assert [grant.job for grant in decided.grants] == [4]
    can = "on cpu, which can give one program 1.9 GiB now"
    assert decided.reasons == {
        1: f"asks for 3.0 GiB {can}",
        2: f"asks for at least 3.0 GiB {can}",
        3: f"asks for at least 3.0 GiB {can}",
    }


def test_a_program_that_was_never_measured_waits_for_its_share_and_keeps_its_place() -> None:
    waiting = (candidate(1, Auto()), candidate(2, Exactly(64 * MiB)))
    decided = plan((room(free=512 * MiB),), waiting)
    assert decided.grants == ()
    assert decided.reasons[1].startswith("needs 512 MiB + 128 MiB for its process on cpu;")
    assert decided.reasons[2].endswith("but #1 is first in line")


def test_a_job_for_one_device_does_not_hold_up_those_for_another() -> None:
    rooms = (room("gpu0", free=0), room("gpu1"))
    waiting = (candidate(1, Exactly(GiB), on="gpu0"), candidate(2, Exactly(GiB), on="gpu1"))
    assert [grant.job for grant in plan(rooms, waiting).grants] == [2]


def test_gpus_are_preferred_and_the_fullest_one_that_fits_is_taken() -> None:
    rooms = (room("gpu0", free=2 * GiB), room("gpu1", free=GiB), room())
    (grant,) = plan(rooms, (candidate(1, Exactly(512 * MiB)),)).grants
    assert grant.device == "gpu1"
    (grant,) = plan(rooms, (candidate(1, Exactly(GiB)),)).grants
    assert grant.device == "gpu0"


def test_a_device_is_found_by_its_name_its_kind_and_its_uuid() -> None:
    rooms = (room("gpu0"), room("gpu1"), room())
    assert eligible("gpu1", rooms) == ["gpu1"]
    assert eligible("gpu", rooms) == ["gpu0", "gpu1"]
    assert eligible("GPU-gpu0", rooms) == ["gpu0"]
    assert eligible("cpu", rooms) == ["cpu"]
    assert eligible(None, rooms) == ["gpu0", "gpu1"]
    assert eligible(None, (room(),)) == ["cpu"]
    assert eligible("gpu7", rooms) == []


def test_a_device_that_has_gone_is_named() -> None:
    decided = plan((room(),), (candidate(1, Auto(), on="gpu0"), candidate(2, Auto())))
    assert decided.reasons == {1: "there is no device 'gpu0' any more"}
    assert [grant.job for grant in decided.grants] == [2]


def test_grow_takes_all_that_is_free_and_the_next_waits_behind_it() -> None:
    decided = plan((room(free=GiB),), (candidate(1, Grow()), candidate(2, Grow())))
    assert decided.grants == (Grant(1, "cpu", decided.grants[0].size, GiB),)
    assert decided.grants[0].size.ceiling == GiB - 128 * MiB
    assert decided.reasons[2].startswith("needs 16.0 MiB + 128 MiB for its process on cpu; 0 B of")


def test_grow_goes_where_it_gets_most() -> None:
    rooms = (room("gpu0", free=GiB), room("gpu1", free=2 * GiB))
    (grant,) = plan(rooms, (candidate(1, Grow()),)).grants
    assert (grant.device, grant.size.ceiling) == ("gpu1", 2 * GiB - 128 * MiB)
    # What counts is what is left for the program itself.
    costly = replace(candidate(1, Grow()), overhead={"gpu0": 64 * MiB, "gpu1": 1536 * MiB})
    (grant,) = plan(rooms, (costly,)).grants
    assert (grant.device, grant.size.ceiling) == ("gpu0", GiB - 64 * MiB)


def test_what_strangers_took_beyond_the_capacity_reads_as_nothing_free() -> None:
    there = room(free=-GiB, strangers=3 * GiB)
    (reason,) = plan((there,), (candidate(1, Auto()),)).reasons.values()
    assert "0 B of 2.0 GiB free; held by other programs 3.0 GiB" in reason


def test_the_most_a_device_could_ever_give_leaves_out_what_stands_and_the_process() -> None:
    assert most_ever(room(free=0, standing=200 * MiB), 128 * MiB) == 2 * GiB - 328 * MiB
