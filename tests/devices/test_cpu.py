"""The CPU of this machine, and containers laid out as files."""

import os
from pathlib import Path

import psutil
import pytest

from sublet.devices.cgroup import Limit, memory_limit
from sublet.devices.cpu import _memory, cpu_device, cpu_facts, processors
from sublet.units import GiB, MiB

UNLIMITED_V1 = 9223372036854771712


class Container:
    """A /proc/self and the cgroup files it speaks of."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.mount = directory / "cgroup"
        self.proc.mkdir()

    def belongs(self, memberships: str, mounts: str) -> None:
        (self.proc / "cgroup").write_text(memberships)
        (self.proc / "mountinfo").write_text(mounts)

    def v2(self, path: str, most: int | str, used: int, inactive: int = 0) -> None:
        node = self._node(path)
        (node / "memory.max").write_text(f"{most}\n")
        (node / "memory.current").write_text(f"{used}\n")
        (node / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\n")

    def v1(self, path: str, most: int, used: int, inactive: int = 0) -> None:
        node = self._node(path)
        (node / "memory.limit_in_bytes").write_text(f"{most}\n")
        (node / "memory.usage_in_bytes").write_text(f"{used}\n")
        (node / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {inactive}\n")

    def _node(self, path: str) -> Path:
        node = self.mount / path
        node.mkdir(parents=True, exist_ok=True)
        return node

    def mounted(self, kind: str, root: str = "/") -> str:
        return (
            "22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/x\n"
            f"31 22 0:26 {root} {self.mount} rw,nosuid shared:4 - {kind}\n"
        )


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_capacity_is_a_stated_share_of_what_there_is() -> None:
    there = _memory()
    device = cpu_device(None, share=0.5)
    assert device.capacity == there.total // 2
    assert device.source.startswith("50% of ")
    assert cpu_device(None).capacity == int(there.total * 0.8)
    assert (device.id, device.kind, device.index, device.uuid) == ("cpu", "cpu", None, None)
    assert device.name


def test_capacity_is_what_the_user_set() -> None:
    device = cpu_device(2 * GiB)
    assert (device.capacity, device.source) == (2 * GiB, "set by SUBLET_CPU_MEMORY")


def test_facts_add_up_to_the_machine() -> None:
    facts = cpu_facts(cpu_device(2 * GiB))
    assert facts.used + facts.available == _memory().total
    assert facts.used > 0
    assert facts.available > 0
    assert (facts.holders, facts.fault) == ((), None)


def test_a_container_is_as_large_as_its_limit(container: Container) -> None:
    container.belongs("0::/\n", container.mounted("cgroup2 cgroup2 rw"))
    container.v2("", most=256 * MiB, used=100 * MiB, inactive=60 * MiB)
    there = _memory(container.proc)
    assert (there.total, there.limited) == (256 * MiB, True)
    # What the kernel can drop at need is available.
    assert there.available == 216 * MiB


def test_a_limit_above_the_ram_limits_nothing(container: Container) -> None:
    container.belongs("0::/\n", container.mounted("cgroup2 cgroup2 rw"))
    container.v2("", most=psutil.virtual_memory().total + 1, used=0)
    there = _memory(container.proc)
    assert (there.total, there.limited) == (psutil.virtual_memory().total, False)


def test_a_container_over_its_limit_has_nothing_left(container: Container) -> None:
    container.belongs("0::/\n", container.mounted("cgroup2 cgroup2 rw"))
    container.v2("", most=256 * MiB, used=300 * MiB)
    assert _memory(container.proc).available == 0


def test_the_tightest_limit_above_us_counts(container: Container) -> None:
    container.belongs("0::/user/session\n", container.mounted("cgroup2 cgroup2 rw"))
    container.v2("user/session", most="max", used=MiB)
    container.v2("user", most=4 * GiB, used=GiB)
    container.v2("", most=8 * GiB, used=2 * GiB)
    assert memory_limit(container.proc) == Limit(4 * GiB, GiB)


def test_version_one_is_read_below_the_root_that_is_mounted(container: Container) -> None:
    container.belongs(
        "4:memory:/docker/abc/job\n3:cpu,cpuacct:/docker/abc\n0::/\n",
        container.mounted("cgroup cgroup rw,memory", root="/docker/abc"),
    )
    container.v1("", most=4 * GiB, used=GiB, inactive=MiB)
    container.v1("job", most=UNLIMITED_V1, used=0)
    assert memory_limit(container.proc) == Limit(4 * GiB, GiB - MiB)


@pytest.mark.parametrize("membership", ["/../elsewhere", "/kubepods/pod1"])
def test_a_cgroup_out_of_sight_leaves_the_limit_of_what_is_mounted(
    container: Container, membership: str
) -> None:
    container.belongs(
        f"0::{membership}\n", container.mounted("cgroup2 cgroup2 rw", root="/kubepods/pod")
    )
    container.v2("", most=GiB, used=MiB)
    assert memory_limit(container.proc) == Limit(GiB, MiB)


def test_nothing_limits_a_machine_without_cgroups_or_limits(container: Container) -> None:
    assert memory_limit(container.proc) is None
    container.belongs("", "")
    assert memory_limit(container.proc) is None
    container.belongs("0::/\n", container.mounted("cgroup2 cgroup2 rw"))
    assert memory_limit(container.proc) is None


def test_no_limit_is_understood_in_the_words_of_both_versions(container: Container) -> None:
    container.belongs("0::/a\n", container.mounted("cgroup2 cgroup2 rw"))
    container.v2("a", most="max", used=MiB)
    assert memory_limit(container.proc) is None
    container.belongs("4:memory:/b\n", container.mounted("cgroup cgroup rw,memory"))
    container.v1("b", most=UNLIMITED_V1, used=MiB)
    assert memory_limit(container.proc) is None


def test_processors_that_share_a_core_stand_side_by_side(tmp_path: Path) -> None:
    """As the kernel tells it; one of which it tells nothing is a core of its own."""
    mine = sorted(os.sched_getaffinity(0))
    assert sorted(processors()) == mine
    assert list(processors(tmp_path)) == mine
    topology = tmp_path / f"cpu{mine[-1]}" / "topology"
    topology.mkdir(parents=True)
    (topology / "thread_siblings_list").write_text(f"{mine[0]},{mine[-1]}\n")
    ordered = processors(tmp_path)
    assert ordered.index(mine[-1]) - ordered.index(mine[0]) == min(1, len(mine) - 1)


def test_the_limit_of_this_very_process_can_be_read() -> None:
    limit = memory_limit()
    assert limit is None or limit.most > limit.used > 0
