"""Opportunistic programs step back when a guaranteed one works, and get all the rest."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.opportunistic import LEFT, WORKS, Occupant, processors_left, shares_of_time

MACHINE = tuple(range(8))
OCCUPANTS = st.lists(
    st.builds(
        Occupant,
        st.uuids().map(str),
        st.sampled_from(["guaranteed", "opportunistic"]),
        st.none() | st.floats(0, 8),
        st.sets(st.sampled_from(MACHINE), min_size=1).map(sorted).map(tuple),
    ),
    max_size=8,
).map(tuple)


def _guests(occupants: tuple[Occupant, ...]) -> dict[str, Occupant]:
    return {one.attempt_id: one for one in occupants if one.service == "opportunistic"}


@given(OCCUPANTS)
def test_every_opportunistic_program_has_a_share_and_no_guaranteed_one_is_held(
    occupants: tuple[Occupant, ...],
) -> None:
    confined = shares_of_time(occupants)
    assert list(confined) == list(processors_left(MACHINE, occupants)) == list(_guests(occupants))
    assert all(0 < share <= 1 for share in confined.values())


@given(OCCUPANTS)
def test_beside_a_guaranteed_one_that_works_all_others_together_get_the_rest_of_a_gpu(
    occupants: tuple[Occupant, ...],
) -> None:
    worker = Occupant("1.1", "guaranteed", WORKS)
    assert sum(shares_of_time((*occupants, worker)).values()) <= LEFT + 1e-9


@given(OCCUPANTS)
def test_nobody_is_held_back_for_a_guaranteed_one_that_idles(
    occupants: tuple[Occupant, ...],
) -> None:
    idle = tuple(
        Occupant(one.attempt_id, one.service, 0.0, one.processors)
        if one.service == "guaranteed"
        else one
        for one in occupants
    )
    assert all(share == 1 for share in shares_of_time(idle).values())
    opportunistic = _guests(idle)
    assert processors_left(MACHINE, idle) == {
        attempt_id: one.processors for attempt_id, one in opportunistic.items()
    }


@given(OCCUPANTS)
def test_a_guest_stays_within_its_own_processors_and_always_has_one(
    occupants: tuple[Occupant, ...],
) -> None:
    opportunistic = _guests(occupants)
    for attempt_id, part in processors_left(MACHINE, occupants).items():
        assert part
        assert set(part) <= set(opportunistic[attempt_id].processors)


@given(st.integers(1, 64), st.lists(st.floats(WORKS, 64), min_size=1, max_size=4))
def test_guests_get_as_many_processors_as_the_guaranteed_ones_leave_idle(
    count: int, busy: list[float]
) -> None:
    machine = tuple(range(count))
    hosts = [Occupant(f"{n}.1", "guaranteed", used, machine) for n, used in enumerate(busy, 1)]
    confined = processors_left(machine, (*hosts, Occupant("9.1", "opportunistic", 1.0, machine)))
    assert len(confined["9.1"]) == max(1, count - ceil(sum(busy)))


def test_a_guaranteed_program_of_which_nothing_is_known_may_need_the_whole_machine() -> None:
    here = (
        Occupant("1.1", "guaranteed", None, MACHINE),
        Occupant("2.1", "opportunistic", None, MACHINE),
    )
    assert processors_left(MACHINE, here) == {"2.1": (7,)}
    assert shares_of_time(here) == {"2.1": LEFT}


def test_guests_keep_off_the_processors_that_a_guaranteed_one_is_bound_to() -> None:
    here = (
        Occupant("1.1", "guaranteed", 2.0, (6, 7)),
        Occupant("2.1", "opportunistic", 8.0, MACHINE),
    )
    assert processors_left(MACHINE, here) == {"2.1": (0, 1, 2, 3, 4, 5)}


def test_guests_share_cores_among_themselves_first() -> None:
    """Here 0 and 4 are the two halves of a core, 1 and 5, and so on."""
    machine = (0, 4, 1, 5, 2, 6, 3, 7)
    here = (
        Occupant("1.1", "guaranteed", 4.0, MACHINE),
        Occupant("2.1", "opportunistic", 8.0, MACHINE),
    )
    assert processors_left(machine, here) == {"2.1": (2, 3, 6, 7)}
