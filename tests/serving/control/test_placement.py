"""Models are spread over devices, stay where they are, and are packed only if they must be."""

from hypothesis import given
from hypothesis import strategies as st

from sublet.serving.control.placement import ModelDemand, Placement, place

SITES = ("a", "b", "c")
ROOMS = st.fixed_dictionaries(dict.fromkeys(SITES, st.integers(0, 100)))


@st.composite
def models(draw: st.DrawFn) -> list[ModelDemand]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        sites = draw(st.lists(st.sampled_from(SITES), min_size=1, unique=True).map(tuple))
        replicas = draw(st.integers(1, len(sites)))
        found.append(ModelDemand(f"m{number}", draw(st.integers(0, 60)), sites, replicas))
    return found


PAST = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(8)]),
    st.lists(st.sampled_from(SITES), unique=True).map(tuple),
)


def taken(candidates: list[ModelDemand], placed: Placement) -> dict[str, int]:
    return {
        site: sum(one.bytes for one in candidates if site in placed[one.model]) for site in SITES
    }


@given(models(), ROOMS, PAST)
def test_each_model_is_where_it_may_be_as_often_as_it_should(
    candidates: list[ModelDemand], rooms: dict[str, int], past: Placement
) -> None:
    placed = place(candidates, rooms, past)
    assert placed.keys() == {one.model for one in candidates}
    for one in candidates:
        chosen = placed[one.model]
        assert len(set(chosen)) == len(chosen) == one.replicas
        assert set(chosen) <= set(one.devices)


@given(models(), ROOMS, ROOMS, PAST)
def test_nobody_wanders_whatever_becomes_of_the_rooms(
    candidates: list[ModelDemand], rooms: dict[str, int], later: dict[str, int], past: Placement
) -> None:
    placed = place(candidates, rooms, past)
    assert place(candidates, later, placed) == placed
    # Nor when others come or go.
    some = place(candidates[::2], later, placed)
    assert all(some[one.model] == placed[one.model] for one in candidates[::2])


@given(models(), ROOMS, PAST)
def test_the_order_in_which_models_are_named_does_not_matter(
    candidates: list[ModelDemand], rooms: dict[str, int], past: Placement
) -> None:
    assert place(candidates[::-1], rooms, past) == place(candidates, rooms, past)


@given(st.integers(0, 200), ROOMS)
def test_one_alone_is_where_the_most_room_is(size: int, rooms: dict[str, int]) -> None:
    (chosen,) = place([ModelDemand("m", size, SITES)], rooms, {})["m"]
    assert rooms[chosen] == max(rooms.values())


@given(st.lists(st.integers(1, 20), max_size=10), st.integers(200, 1000))
def test_on_equal_devices_with_room_no_two_differ_by_more_than_one_model(
    sizes: list[int], room: int
) -> None:
    candidates = [ModelDemand(f"m{n}", size, SITES) for n, size in enumerate(sizes)]
    full = taken(candidates, place(candidates, dict.fromkeys(SITES, room), {})).values()
    assert max(full) - min(full) <= max(sizes, default=0)


def test_models_are_packed_if_they_have_room_only_so() -> None:
    sizes = {"m0": 6, "m1": 5, "m2": 5}
    candidates = [ModelDemand(name, size, ("a", "b")) for name, size in sizes.items()]
    # Spread, the first would be on a, and the last find room nowhere.
    placed = place(candidates, {"a": 10, "b": 6}, {})
    assert placed == {"m0": ("b",), "m1": ("a",), "m2": ("a",)}


def test_if_there_is_no_room_whatever_one_does_they_are_spread() -> None:
    candidates = [ModelDemand(f"m{n}", 10, ("a", "b")) for n in range(4)]
    placed = place(candidates, {"a": 10, "b": 10, "c": 0}, {})
    assert taken(candidates, placed) == {"a": 20, "b": 20, "c": 0}


def test_a_model_that_may_not_stay_moves_and_one_with_fewer_replicas_stays_where_it_was_first() -> (
    None
):
    rooms = {"a": 10, "b": 10, "c": 10}
    past = {"moved": ("a",), "fewer": ("c", "b")}
    candidates = [ModelDemand("moved", 1, ("b",)), ModelDemand("fewer", 1, SITES)]
    assert place(candidates, rooms, past) == {"moved": ("b",), "fewer": ("c",)}
