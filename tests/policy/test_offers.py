"""What a job would be given, device by device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.memory import Auto, Between, Exactly, Grow, MemoryAsk, Share
from sublet.domain.nursery import Nursery
from sublet.policy.capacity import Capacity, eligible, most_ever
from sublet.policy.offers import never, offers
from sublet.policy.sizing import SMALLEST
from sublet.policy.wait_queue import Offer
from sublet.units import GiB, MiB
from support.jobs import asks, device

OVERHEAD = {"cpu": 128 * MiB, "gpu0": 256 * MiB, "gpu1": 256 * MiB}


def capacity(name: str, *nurseries: Nursery) -> Capacity:
    return Capacity(device(name, 2 * GiB), 2 * GiB, nurseries)


OWN = 7
ROOMS = (
    capacity("gpu0"),
    capacity("gpu1"),
    capacity("cpu", Nursery(OWN, 200 * MiB), Nursery(OWN + 1, 300 * MiB)),
)


def test_devices_that_give_the_same_share_an_offer() -> None:
    (one,) = offers(Exactly(GiB), None, ROOMS, OVERHEAD, {})
    assert one == Offer(("gpu0", "gpu1"), GiB, GiB + 256 * MiB, "as asked")


def test_a_share_is_of_each_device() -> None:
    capacities = (Capacity(device("gpu0", GiB), 0), Capacity(device("gpu1", 2 * GiB), 0))
    sizes = {one.devices: one.ceiling for one in offers(Share(0.5), None, capacities, OVERHEAD, {})}
    assert sizes == {("gpu0",): 512 * MiB, ("gpu1",): GiB}


def test_a_lease_may_be_raised_unless_the_user_has_said_how_large_it_is() -> None:
    ever = 2 * GiB - 200 * MiB - 128 * MiB
    for ask, floor, most in (
        (Grow(), 40 * MiB, ever),
        (Auto(), 512 * MiB, ever),
        (Between(64 * MiB, GiB), 64 * MiB, GiB),
        (Between(64 * MiB, 3 * GiB), 64 * MiB, ever),
        (Exactly(GiB), GiB, 0),
        (Share(0.5), GiB, 0),
    ):
        (one,) = offers(ask, "cpu", ROOMS, OVERHEAD, {}, nursery=OWN)
        assert (one.ceiling, one.most) == (floor, most)
    (one,) = offers(Grow(), "cpu", ROOMS, OVERHEAD, {}, least=GiB, nursery=OWN)
    assert (one.ceiling, one.most) == (GiB, ever)


@given(asks, st.sampled_from([None, "gpu", "cpu", "gpu1"]), st.sampled_from([0, 64 * MiB, 3 * GiB]))
def test_an_offer_always_fits_the_empty_device_and_hangs_on_nobody_there(
    ask: MemoryAsk, on: str | None, least: int
) -> None:
    found = offers(ask, on, ROOMS, OVERHEAD, {}, least)
    full = tuple(Capacity(one.device, -GiB, one.nurseries, GiB) for one in ROOMS)
    assert offers(ask, on, full, OVERHEAD, {}, least) == found
    by_name = {one.device.id: one for one in ROOMS}
    for one in found:
        assert set(one.devices) <= set(eligible(on, ROOMS))
        for name in one.devices:
            assert max(SMALLEST, least) <= one.ceiling <= most_ever(by_name[name], OVERHEAD[name])
            assert one.charge == one.ceiling + OVERHEAD[name]


@pytest.mark.parametrize(
    ("ask", "least", "said"),
    [
        (Exactly(3 * GiB), 0, "asks for 3.0 GiB on cpu, which can give one program 1.7 GiB now"),
        (Auto(), 3 * GiB, "asks for at least 3.0 GiB on cpu, which can give one program 1.7 GiB"),
        (Grow(), 3 * GiB, "asks for at least 3.0 GiB on cpu, which can give one program 1.7 GiB"),
    ],
)
def test_what_can_never_fit_has_no_offer_and_says_what_the_device_can_give(
    ask: MemoryAsk, least: int, said: str
) -> None:
    assert offers(ask, "cpu", ROOMS, OVERHEAD, {}, least, nursery=OWN) == ()
    assert never(ask, "cpu", ROOMS, OVERHEAD, least, nursery=OWN).startswith(said)


@pytest.mark.parametrize(
    ("nursery", "most"), [(None, 2048), (OWN, 1848), (OWN + 1, 1748), (0, 1748), (99, 1748)]
)
def test_of_all_nurseries_only_the_one_that_a_job_needs_counts_against_it(
    nursery: int | None, most: int
) -> None:
    """One that is not warm yet will be as large as others are."""
    (one,) = offers(Grow(), "cpu", ROOMS, OVERHEAD, {}, nursery=nursery)
    assert one.most == (most - 128) * MiB


def test_a_device_that_has_gone_is_named() -> None:
    assert offers(Auto(), "gpu7", ROOMS, OVERHEAD, {}) == ()
    assert never(Auto(), "gpu7", ROOMS, OVERHEAD) == "there is no device 'gpu7' any more"


def test_a_device_is_found_by_its_name_its_kind_and_its_uuid() -> None:
    assert eligible("gpu1", ROOMS) == ["gpu1"]
    assert eligible("gpu", ROOMS) == ["gpu0", "gpu1"]
    assert eligible("GPU-gpu0", ROOMS) == ["gpu0"]
    assert eligible(None, ROOMS) == ["gpu0", "gpu1"]
    assert eligible(None, ROOMS[2:]) == ["cpu"]
    assert eligible("gpu7", ROOMS) == []
