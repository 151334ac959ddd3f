"""Opportunistic programs step back when a guaranteed one works, and get all the rest."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from sublet.policy.service import LEFT, WORKS, Occupant, stances

OCCUPANTS = st.lists(
    st.builds(
        Occupant,
        st.uuids().map(str),
        st.sampled_from(["guaranteed", "opportunistic"]),
        st.floats(0, 1),
    ),
    max_size=8,
).map(tuple)


@given(st.sampled_from(["cpu", "gpu"]), OCCUPANTS)
def test_every_opportunistic_program_has_a_share_and_no_guaranteed_one_is_held(
    kind: Literal["cpu", "gpu"], occupants: tuple[Occupant, ...]
) -> None:
    told = stances(kind, occupants)
    assert [stance.run for stance in told] == [
        one.run for one in occupants if one.service == "opportunistic"
    ]
    assert all(0 < stance.share <= 1 for stance in told)


@given(OCCUPANTS)
def test_beside_a_guaranteed_one_that_works_all_others_together_get_the_rest(
    occupants: tuple[Occupant, ...],
) -> None:
    worker = Occupant("1.1", "guaranteed", WORKS)
    told = stances("gpu", (*occupants, worker))
    assert sum(stance.share for stance in told) <= LEFT + 1e-9


@given(OCCUPANTS)
def test_nobody_is_held_back_for_a_guaranteed_one_that_idles(
    occupants: tuple[Occupant, ...],
) -> None:
    idle = tuple(
        Occupant(one.run, one.service, 0.0) if one.service == "guaranteed" else one
        for one in occupants
    )
    assert all(stance.share == 1 for stance in stances("gpu", idle))


def test_on_processors_the_scheduler_does_it() -> None:
    busy = (Occupant("1.1", "guaranteed", 1.0), Occupant("2.1", "opportunistic", 1.0))
    assert [stance.share for stance in stances("cpu", busy)] == [1.0]
