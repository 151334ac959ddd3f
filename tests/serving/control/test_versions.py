"""Which versions are wanted, and in which order they come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.control.config_files import All, Latest, Policy, Specific
from sublet.serving.control.versions import check_labels, choose, forget, plan, put, without_model

FOUND = {1: "a/1", 2: "a/2", 10: "a/10"}


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [
        (Latest(), [10]),
        (Latest(2), [2, 10]),
        (Latest(9), [1, 2, 10]),
        (All(), [1, 2, 10]),
        (Specific((2, 7)), [2]),
    ],
)
def test_a_policy_chooses_among_what_is_there(policy: Policy, numbers: list[int]) -> None:
    assert list(choose(policy, FOUND)) == numbers


def model(**states: State) -> Model:
    """Versions named v1, v2 … in these states."""
    found = {int(name[1:]): Version("a", int(name[1:]), one) for name, one in states.items()}
    return Model("a", found)


def test_a_new_version_is_loaded_before_the_old_one_is_dropped() -> None:
    assert plan(model(v1=State.AVAILABLE), {2: "a/2"}).load == (2,)
    assert plan(model(v1=State.AVAILABLE), {2: "a/2"}).drop == ()
    after = plan(model(v1=State.AVAILABLE, v2=State.AVAILABLE), {2: "a/2"})
    assert (after.load, after.drop) == ((), (1,))


def test_an_old_version_stays_when_the_new_one_failed() -> None:
    failed = Version("a", 2, State.END, code=Code.INTERNAL, error="It is broken.")
    before = Model("a", {1: Version("a", 1, State.AVAILABLE), 2: failed})
    assert not plan(before, {2: "a/2"})


def test_a_version_that_was_dropped_is_loaded_anew_when_it_is_wanted_again() -> None:
    assert plan(model(v1=State.AVAILABLE, v2=State.END), {2: "a/2"}).load == (2,)


def test_a_model_without_any_wanted_version_is_dropped() -> None:
    assert plan(model(v1=State.AVAILABLE, v2=State.AVAILABLE), {}).drop == (1, 2)


states = st.sampled_from(list(State))
numbers = st.integers(1, 6)


@given(st.dictionaries(numbers, states), st.sets(numbers))
def test_a_plan_never_takes_away_the_last_version_that_works(
    known: dict[int, State], wanted: set[int]
) -> None:
    before = Model("a", {n: Version("a", n, state) for n, state in known.items()})
    made = plan(before, {n: str(n) for n in wanted})
    served = {n for n, state in known.items() if state is State.AVAILABLE}
    assert set(made.load) <= wanted
    assert not set(made.drop) & wanted
    if wanted and served:
        assert served - set(made.drop)


def test_old_ended_versions_are_forgotten_after_a_while() -> None:
    catalogue = Catalogue()
    for number in range(1, 50):
        catalogue = put(catalogue, Version("a", number, State.END))
    assert max(catalogue.models["a"].versions) == 49
    assert len(catalogue.models["a"].versions) < 10


def test_what_is_forgotten_is_not_found_any_more() -> None:
    catalogue = put(Catalogue(), Version("a", 1, State.AVAILABLE))
    assert catalogue.find("a").number == 1
    assert forget(catalogue, "a", 1).models["a"].versions == {}
    assert forget(catalogue, "b", 1) == catalogue
    assert without_model(catalogue, "a").models == {}


CATALOGUE = put(put(Catalogue(), Version("a", 1, State.AVAILABLE)), Version("a", 2, State.LOADING))


def test_a_label_is_refused_on_a_version_that_cannot_be_called() -> None:
    check_labels(CATALOGUE, "a", {"stable": 1}, allow_unavailable=False)
    with pytest.raises(ServingError, match="label to version 2 of model a, which is not") as info:
        check_labels(CATALOGUE, "a", {"stable": 1, "canary": 2}, allow_unavailable=False)
    assert info.value.code == Code.FAILED_PRECONDITION


def test_a_new_label_may_wait_for_its_version_but_an_old_one_does_not_move_there() -> None:
    check_labels(CATALOGUE, "a", {"canary": 2}, allow_unavailable=True)
    labelled = Catalogue({"a": Model("a", CATALOGUE.models["a"].versions, {"canary": 1})})
    with pytest.raises(ServingError, match="version 2"):
        check_labels(labelled, "a", {"canary": 2}, allow_unavailable=True)
