"""Our NVML code and the real pynvml, in a child process, on a stand-in driver library."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import standin
from standin import Gpu, GpuProcess, Instance
from sublet.domain.device import Device, DeviceFacts, Holder
from sublet.units import GiB, MiB

LOST, UNKNOWN, NO_PERMISSION, DRIVER_NOT_LOADED, VERSION_MISMATCH = 15, 999, 4, 9, 18

WATCHER = """
import sys, msgspec
from sublet.devices import Probe
probe = Probe.open(cpu_memory=2**31)
for _ in sys.stdin:
    view = {"driver": probe.driver, "devices": probe.devices(), "facts": probe.facts()}
    print(msgspec.json.encode(view).decode(), flush=True)
probe.close()
"""


class View(msgspec.Struct):
    driver: str
    devices: list[Device]
    facts: dict[str, DeviceFacts]

    @property
    def ids(self) -> list[str]:
        return [device.id for device in self.devices]


class Machine(standin.Machine):
    """A driver that a test can change, and a child that looks at it when asked."""

    _child: subprocess.Popen[str] | None = None

    def look(self) -> View:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", WATCHER],
                env=os.environ | self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("look\n")
        self._child.stdin.flush()
        return msgspec.json.decode(self._child.stdout.readline(), type=View)

    def close(self) -> None:
        if self._child is not None:
            self._child.communicate()
            assert self._child.returncode == 0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "machine")
    yield machine
    machine.close()


def pids(holders: Sequence[Holder]) -> list[int]:
    return [holder.pid for holder in holders]


def test_gpus_are_reported_with_all_that_a_lease_needs(machine: Machine) -> None:
    machine.has(
        Gpu(uuid="GPU-a", used=3 * GiB, reserved=512 * MiB),
        Gpu(uuid="GPU-b", name="Standin GTX 1080", total=8 * GiB, compute=(6, 1)),
    )
    view = machine.look()
    assert view.driver == "NVIDIA driver 570.86.10, 2 GPUs"
    first, second, cpu = view.devices
    assert first == Device(
        id="gpu0",
        kind="gpu",
        name="Standin RTX 4090",
        capacity=24 * GiB - 512 * MiB,
        index=0,
        uuid="GPU-a",
        source="NVML, less 512 MiB kept by the driver",
        compute=(8, 9),
    )
    assert (second.id, second.capacity, second.source) == ("gpu1", 8 * GiB, "NVML")
    assert (second.index, second.uuid, second.compute) == (1, "GPU-b", (6, 1))
    assert (cpu.id, cpu.capacity) == ("cpu", 2 * GiB)
    facts = view.facts["gpu0"]
    assert (facts.used, facts.available) == (3 * GiB, 21 * GiB - 512 * MiB)
    assert (facts.device, facts.holders, facts.fault) == (first, (), None)
    assert set(view.facts) == {"gpu0", "gpu1", "cpu"}


def test_a_stranger_who_comes_and_goes_is_seen_while_we_watch(machine: Machine) -> None:
    machine.has(Gpu())
    empty = machine.look().facts["gpu0"]
    assert (empty.used, empty.available, empty.holders) == (0, 24 * GiB, ())
    machine.has(Gpu(used=4 * GiB, processes=(GpuProcess(os.getpid(), 4 * GiB),)))
    facts = machine.look().facts["gpu0"]
    (holder,) = facts.holders
    assert (facts.used, facts.available) == (4 * GiB, 20 * GiB)
    assert (holder.pid, holder.bytes) == (os.getpid(), 4 * GiB)
    assert holder.name == Path("/proc/self/comm").read_text().strip()
    machine.has(Gpu())
    assert machine.look().facts["gpu0"] == empty


def test_a_process_in_several_lists_is_counted_once(machine: Machine) -> None:
    both, drawing, shared, silent = 2**30 + 1, 2**30 + 2, 2**30 + 3, 2**30 + 4
    machine.has(
        Gpu(
            processes=(
                GpuProcess(both, 700 * MiB, "C"),
                GpuProcess(both, 700 * MiB, "G"),
                GpuProcess(drawing, 90 * MiB, "G"),
                GpuProcess(shared, 300 * MiB, "M"),
                GpuProcess(silent, None, "C"),
                GpuProcess(silent, None, "G"),
            )
        )
    )
    assert machine.look().facts["gpu0"].holders == (
        Holder(both, "?", 700 * MiB),
        Holder(drawing, "?", 90 * MiB),
        Holder(shared, "?", 300 * MiB),
        Holder(silent, "?", None),
    )


def test_more_processes_than_one_guess_holds_are_all_listed(machine: Machine) -> None:
    many = tuple(GpuProcess(1000 + n, MiB) for n in range(50))
    machine.has(Gpu(processes=many))
    assert pids(machine.look().facts["gpu0"].holders) == [p.pid for p in many]


def test_memory_is_still_known_where_the_driver_will_not_list_processes(machine: Machine) -> None:
    machine.has(Gpu(used=GiB, processes=(GpuProcess(1, GiB),), list_error=NO_PERMISSION))
    facts = machine.look().facts["gpu0"]
    assert (facts.used, facts.holders, facts.fault) == (GiB, (), None)


def test_memory_that_a_card_has_lost_since_is_as_good_as_used(machine: Machine) -> None:
    """Pages that are retired, or ECC that was switched on: the leases there keep their size."""
    machine.has(Gpu(total=8 * GiB))
    assert machine.look().facts["gpu0"].used == 0
    machine.has(Gpu(total=7 * GiB))
    facts = machine.look().facts["gpu0"]
    assert (facts.device.capacity, facts.used, facts.available) == (8 * GiB, GiB, 7 * GiB)


def test_a_driver_without_the_newer_memory_call_is_read_with_the_older(machine: Machine) -> None:
    machine.has(Gpu(used=GiB, reserved=512 * MiB, memory_v2=False))
    view = machine.look()
    assert (view.devices[0].capacity, view.devices[0].source) == (24 * GiB, "NVML")
    facts = view.facts["gpu0"]
    assert (facts.used, facts.available) == (GiB + 512 * MiB, 23 * GiB - 512 * MiB)


@pytest.mark.parametrize(
    ("error", "words"), [(LOST, "fallen off the bus"), (UNKNOWN, "unknown error")]
)
def test_a_gpu_lost_in_the_middle_is_a_fault_of_that_gpu_alone(
    machine: Machine, error: int, words: str
) -> None:
    healthy, doomed = Gpu(uuid="GPU-a", used=GiB), Gpu(uuid="GPU-b")
    machine.has(healthy, doomed)
    assert machine.look().facts["gpu1"].fault is None
    machine.has(healthy, Gpu(uuid="GPU-b", error=error))
    view = machine.look()
    assert view.ids == ["gpu0", "gpu1", "cpu"]
    lost = view.facts["gpu1"]
    assert words in str(lost.fault)
    assert (lost.used, lost.available, lost.holders) == (24 * GiB, 0, ())
    assert (view.facts["gpu0"].used, view.facts["gpu0"].fault) == (GiB, None)
    machine.has(healthy, doomed)
    assert machine.look().facts["gpu1"].fault is None, "it was reset and is back"


def test_a_gpu_lost_before_we_look_is_left_out_and_named(machine: Machine) -> None:
    machine.has(Gpu(uuid="GPU-a", error=LOST), Gpu(uuid="GPU-b"))
    view = machine.look()
    assert view.ids == ["gpu1", "cpu"]
    assert "1 GPU; gpu0 left out: the GPU has fallen off the bus" in view.driver


def test_mig_instances_stand_in_place_of_their_gpu(machine: Machine) -> None:
    stranger = GpuProcess(2**30 + 1, GiB)
    split = Gpu(
        uuid="GPU-a",
        compute=(8, 0),
        mig=True,
        used=GiB,
        processes=(stranger,),
        instances=(
            Instance(slot=0, uuid="MIG-a"),
            Instance(slot=2, uuid="MIG-b", total=10 * GiB, used=GiB, processes=(stranger,)),
        ),
    )
    machine.has(split, Gpu(uuid="GPU-b"))
    view = machine.look()
    assert view.ids == ["gpu0.0", "gpu0.2", "gpu1", "cpu"]
    assert view.driver == "NVIDIA driver 570.86.10, 2 GPUs (2 MIG instances)"
    instance = view.devices[1]
    assert (instance.uuid, instance.capacity, instance.index) == ("MIG-b", 10 * GiB, 0)
    assert (instance.compute, instance.name) == ((8, 0), "Standin A100 MIG 1g.5gb")
    assert view.facts["gpu0.0"].holders == ()
    assert pids(view.facts["gpu0.2"].holders) == [stranger.pid]
    assert (view.facts["gpu0.2"].used, view.facts["gpu0.2"].available) == (GiB, 9 * GiB)


def test_mig_mode_without_an_instance_says_how_to_make_one(machine: Machine) -> None:
    machine.has(Gpu(mig=True))
    view = machine.look()
    assert view.ids == ["cpu"]
    assert "no usable GPU; gpu0 left out: MIG is on" in view.driver
    assert "nvidia-smi mig -cgi" in view.driver


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (DRIVER_NOT_LOADED, "the NVIDIA driver is installed and not loaded: CPU only"),
        (VERSION_MISMATCH, "differ in version (reboot after an update): CPU only"),
        (UNKNOWN, "the NVIDIA driver does not start (Unknown Error): CPU only"),
    ],
)
def test_a_driver_that_does_not_start_leaves_the_cpu_and_says_why(
    machine: Machine, init: int, words: str
) -> None:
    machine.has(Gpu(), init=init)
    view = machine.look()
    assert view.ids == ["cpu"]
    assert words in view.driver
