"""The CPU as a device: its memory is the machine's, or the container's where that is less.

Reports, never decides. psutil is imported on first use.
"""

import os
import platform
from pathlib import Path
from typing import NamedTuple

from sublet.devices.cgroup import memory_limit
from sublet.domain.device import Device, DeviceFacts
from sublet.errors import BadRequest
from sublet.units import format_bytes


class _Memory(NamedTuple):
    total: int
    available: int
    limited: bool


def cpu_device(memory: int | None, share: float = 0.8) -> Device:
    """The CPU, with `memory` bytes if the user set them, else a `share` of what there is."""
    there = _memory()
    if memory is not None and memory > there.total:
        raise BadRequest(
            f"SUBLET_CPU_MEMORY is {format_bytes(memory)}, and this machine has "
            f"{format_bytes(there.total)}.",
            "Set it to less, or leave it out: then 80% of the memory are used.",
        )
    if memory is not None:
        capacity, source = memory, "set by SUBLET_CPU_MEMORY"
    else:
        of_what = "the container's memory limit" if there.limited else "RAM"
        capacity, source = int(there.total * share), f"{share:.0%} of {of_what}"
    return Device(
        id="cpu", kind="cpu", name=_name(), capacity=capacity, index=None, uuid=None, source=source
    )


def cpu_facts(device: Device) -> DeviceFacts:
    """What the whole machine uses: it may be more than the capacity that the user set."""
    there = _memory()
    return DeviceFacts(device, used=there.total - there.available, available=there.available)


def processors(root: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """The processors that we may use, those that share a core side by side."""
    return tuple(sorted(os.sched_getaffinity(0), key=lambda number: (_core(root, number), number)))


def _core(root: Path, number: int) -> int:
    """The first processor of the core that this one belongs to."""
    try:
        siblings = (root / f"cpu{number}/topology/thread_siblings_list").read_text()
        return int(siblings.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return number


def _memory(proc: Path = Path("/proc/self")) -> _Memory:
    import psutil

    ram = psutil.virtual_memory()
    limit = memory_limit(proc)
    if limit is None or limit.most >= ram.total:
        return _Memory(ram.total, ram.available, limited=False)
    left = max(0, limit.most - limit.used)
    return _Memory(limit.most, min(left, ram.available), limited=True)


def _name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return " ".join(value.split())
    except OSError:
        pass
    return platform.machine() or "CPU"
