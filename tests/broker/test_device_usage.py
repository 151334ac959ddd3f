"""How full a device is."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sublet.broker.device_usage import SETTLING, Strangers, UsageSample, capacities, in_use
from sublet.domain.device import Device, DeviceFacts, Holder
from sublet.domain.job import Job, Process, Starting, Tenant
from sublet.domain.nursery import Nursery
from sublet.policy.capacity import Capacity, Holding
from sublet.units import GiB, MiB
from support.jobs import device, facts, job, lease, running

CPU = device("cpu", 2 * GiB)
GPU = device("gpu0", 8 * GiB)


def holder(number: int, on: str = "cpu", ceiling: int = 512 * MiB) -> Job:
    """A running job whose worker has the pid 1000 + its number."""
    return job(number, running(lease(on, ceiling), Process(1000 + number, 1)))


def room_of(
    fact: DeviceFacts,
    holding: list[Job] | None = None,
    samples: dict[str, UsageSample] | None = None,
    standing: int = 0,
) -> Capacity:
    warm = (Nursery(7, standing),) if standing else ()
    (only,) = capacities({fact.device.id: fact}, holding or [], samples or {}, warm)
    return only


def test_an_idle_device_is_all_free() -> None:
    for one in (CPU, GPU):
        assert room_of(facts(one)) == Capacity(one, one.capacity)


def test_a_lease_counts_with_its_charge_as_long_as_less_is_in_use() -> None:
    samples = {"1.1": UsageSample(100 * MiB, 100 * MiB, (1001,))}
    capacity = room_of(facts(CPU, available=30 * GiB), [holder(1)], samples)
    assert capacity.tenants == (Tenant("train.py", 640 * MiB, 1),)
    assert capacity.free == 2 * GiB - 640 * MiB
    assert capacity.strangers == 0


def test_a_lease_counts_with_what_it_holds_where_that_is_more_than_its_charge() -> None:
    samples = {"1.1": UsageSample(900 * MiB, 950 * MiB, (1001,))}
    capacity = room_of(facts(CPU, available=30 * GiB), [holder(1)], samples)
    assert capacity.tenants == (Tenant("train.py", 900 * MiB, 1),)
    assert capacity.free == 2 * GiB - 900 * MiB


def test_a_lease_counts_from_its_grant_on() -> None:
    starting = job(1, Starting(1.0, lease(), 0.0, 1.0))
    assert room_of(facts(CPU), [starting]).free == 2 * GiB - 640 * MiB


def test_the_sample_of_an_older_attempt_says_nothing_of_this_one() -> None:
    old = {"1.1": UsageSample(GiB, GiB, (1001,))}
    again = job(1, running(lease()), attempt=2)
    assert in_use(again, facts(CPU), old) is None
    assert room_of(facts(CPU, available=30 * GiB), [again], old).tenants[0].bytes == 640 * MiB


def test_memory_that_is_missing_from_the_machine_belongs_to_strangers() -> None:
    capacity = room_of(facts(CPU, available=GiB))
    assert (capacity.strangers, capacity.free) == (GiB, GiB)


def test_what_our_own_hold_is_not_taken_for_strangers_memory() -> None:
    samples = {"1.1": UsageSample(640 * MiB, 640 * MiB, (1001,))}
    left = 2 * GiB - 640 * MiB - 200 * MiB
    capacity = room_of(facts(CPU, available=left), [holder(1)], samples, 200 * MiB)
    assert capacity == Capacity(
        CPU, left, (Nursery(7, 200 * MiB),), 0, (Holding(1, 640 * MiB, "train.py", since=7.0),)
    )


def test_nurseries_are_charged_to_the_cpu_and_not_to_a_gpu() -> None:
    both = {"gpu0": facts(GPU), "cpu": facts(CPU)}
    gpu, cpu = capacities(both, [], {}, (Nursery(7, 300 * MiB),))
    assert (gpu.standing, gpu.free) == (0, 8 * GiB)
    assert (cpu.standing, cpu.free) == (300 * MiB, 2 * GiB - 300 * MiB)


def test_a_gpus_memory_that_is_not_ours_belongs_to_strangers() -> None:
    seen = (Holder(1001, "train.py", 500 * MiB), Holder(77, "game", 3 * GiB))
    fact = facts(GPU, used=3 * GiB + 600 * MiB, holders=seen)
    capacity = room_of(fact, [holder(1, "gpu0")])
    assert in_use(holder(1, "gpu0"), fact, {}) == 500 * MiB
    assert capacity.strangers == 3 * GiB + 100 * MiB
    assert capacity.tenants == (Tenant("train.py", 640 * MiB, 1),)
    assert capacity.free == 8 * GiB - 640 * MiB - capacity.strangers


def test_the_children_of_a_worker_hold_for_their_job() -> None:
    seen = (Holder(1001, "train.py", 500 * MiB), Holder(1500, "child", 700 * MiB))
    samples = {"1.1": UsageSample(0, 0, (1001, 1500))}
    capacity = room_of(facts(GPU, used=1200 * MiB, holders=seen), [holder(1, "gpu0")], samples)
    assert (capacity.strangers, capacity.tenants[0].bytes) == (0, 1200 * MiB)


def test_a_gpu_that_shows_our_process_and_not_its_bytes_counts_the_lease_once() -> None:
    mine = holder(1, "gpu0")
    seen = (Holder(1001, "train.py", None),)
    for used, strangers in ((0, 0), (500 * MiB, 0), (640 * MiB, 0), (GiB, GiB - 640 * MiB)):
        fact = facts(GPU, used=used, holders=seen)
        assert in_use(mine, fact, {}) is None
        capacity = room_of(fact, [mine])
        assert capacity.strangers == strangers
        assert capacity.tenants == (Tenant("train.py", 640 * MiB, 1),)
        assert capacity.free == 8 * GiB - 640 * MiB - strangers


def test_a_gpu_that_shows_a_child_of_ours_without_bytes_counts_the_lease_once() -> None:
    fact = facts(GPU, used=600 * MiB, holders=(Holder(1500, "child", None),))
    samples = {"1.1": UsageSample(0, 0, (1001, 1500))}
    assert room_of(fact, [holder(1, "gpu0")], samples).strangers == 0


def test_what_a_gpu_uses_without_showing_our_process_is_not_ours() -> None:
    fact = facts(GPU, used=600 * MiB, holders=(Holder(77, "game", None),))
    capacity = room_of(fact, [holder(1, "gpu0")])
    assert (capacity.strangers, capacity.free) == (600 * MiB, 8 * GiB - 1240 * MiB)


def test_a_lease_on_one_device_takes_nothing_from_another() -> None:
    both = {"gpu0": facts(GPU), "cpu": facts(CPU)}
    gpu, cpu = capacities(both, [holder(1, "gpu0")], {}, ())
    assert (gpu.free, cpu.free) == (8 * GiB - 640 * MiB, 2 * GiB)
    assert cpu.tenants == ()


def test_a_faulty_device_is_full() -> None:
    broken = DeviceFacts.unknown(GPU, "the driver is gone")
    assert room_of(broken).free == 0
    assert room_of(broken, [holder(1, "gpu0")]).free < 0


def test_strangers_can_leave_less_than_nothing() -> None:
    capacity = room_of(facts(CPU, available=100 * MiB), [holder(1)])
    assert capacity.free < 0


@given(
    st.sampled_from([CPU, GPU]),
    st.integers(0, 8 * GiB),
    st.integers(0, 8 * GiB),
    st.lists(st.tuples(st.integers(0, 4 * GiB), st.none() | st.integers(0, 4 * GiB)), max_size=4),
    st.integers(0, GiB),
)
def test_what_is_free_and_what_is_held_add_up_to_the_capacity(
    one: Device,
    used: int,
    available: int,
    held: list[tuple[int, int | None]],
    standing: int,
) -> None:
    holding = [holder(n, one.id, ceiling) for n, (ceiling, _) in enumerate(held, start=1)]
    samples = {
        f"{n}.1": UsageSample(now, now, (1000 + n,))
        for n, (_, now) in enumerate(held, start=1)
        if now is not None
    }
    seen = tuple(Holder(1000 + n, "x", now) for n, (_, now) in enumerate(held, start=1))
    capacity = room_of(facts(one, used, available, seen), holding, samples, standing)
    tenants = sum(tenant.bytes for tenant in capacity.tenants)
    assert capacity.free + tenants + capacity.strangers + capacity.standing == one.capacity
    assert capacity.strangers >= 0
    for tenant, (ceiling, now) in zip(capacity.tenants, held, strict=True):
        assert tenant.bytes == max(ceiling + 128 * MiB, now or 0)


def settled(memory: Strangers, shown: int, now: float, ours: int = 0) -> int:
    return memory.settled("gpu0", shown, ours, now)


def test_what_strangers_take_counts_at_once_and_what_they_give_back_after_it_has_settled() -> None:
    memory = Strangers()
    assert settled(memory, GiB, 0.0) == GiB
    assert settled(memory, 3 * GiB, 1.0) == 3 * GiB
    assert settled(memory, 0, 2.0) == 3 * GiB
    assert settled(memory, 2 * GiB, 3.0) == 3 * GiB
    assert settled(memory, 0, 1.0 + SETTLING) == 2 * GiB
    assert settled(memory, 0, 3.0 + SETTLING) == 0


def test_the_memory_of_a_lease_that_just_ended_is_free_as_soon_as_the_driver_shows_it() -> None:
    memory = Strangers()
    memory.lease_ended("gpu0", 2 * GiB, 10.0)
    assert settled(memory, 2 * GiB, 10.1) == 2 * GiB
    assert settled(memory, 0, 10.2) == 0


def test_memory_that_stays_after_a_lease_has_ended_belongs_to_strangers() -> None:
    memory = Strangers()
    memory.lease_ended("gpu0", 2 * GiB, 10.0)
    later = 10.0 + SETTLING
    assert settled(memory, 2 * GiB, later) == 2 * GiB
    assert settled(memory, 0, later + 1) == 2 * GiB


def test_what_may_be_a_lease_that_grew_is_not_free_but_need_not_settle() -> None:
    memory = Strangers()
    assert settled(memory, GiB, 0.0, ours=2 * GiB) == GiB
    assert settled(memory, 0, 0.1, ours=GiB) == 0


def test_strangers_that_let_go_for_a_moment_give_no_room_away() -> None:
    memory = Strangers()
    busy = {"gpu0": facts(GPU, used=6 * GiB)}
    idle = {"gpu0": facts(GPU)}
    assert capacities(busy, [], {}, (), memory, 0.0)[0].free == 2 * GiB
    assert capacities(idle, [], {}, (), memory, 1.0)[0].free == 2 * GiB
    assert capacities(idle, [], {}, (), memory, 2 + SETTLING)[0].free == 8 * GiB


def test_a_job_with_leases_on_several_devices_counts_on_each() -> None:
    other = device("gpu1", 8 * GiB)
    both = replace(lease("gpu0", GiB), also=(lease("gpu1", 2 * GiB),))
    found = capacities(
        {one.id: facts(one) for one in (GPU, other, CPU)}, [job(1, running(both))], {}, ()
    )
    charged = {one.device.id: sum(held.charge for held in one.holdings) for one in found}
    assert charged == {"gpu0": GiB + 128 * MiB, "gpu1": 2 * GiB + 128 * MiB, "cpu": 0}
