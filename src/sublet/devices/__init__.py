"""What devices there are and what is on them: facts for the broker, decisions for nobody.

Probe ─┬─ cpu ── psutil, cgroup
       └─ nvml ─ pynvml, where there is a driver
"""

import time
from collections.abc import Mapping

from sublet.devices.cpu import cpu_device, cpu_facts, processors
from sublet.devices.nvml import Nvml, NvmlAbsent, open_nvml
from sublet.devices.overhead import context_overhead
from sublet.domain.device import Device, DeviceFacts

__all__ = ["Probe", "context_overhead", "processors"]


_LOOKS = 5.0
"""Seconds between two looks whether a GPU that could not be read is there again."""


class Probe:
    """The devices of this machine; what is on them is read anew each time.

    For one thread. A device that fails later stays in the list, with a fault in its facts. A GPU
    that cannot be read at first is left out, and looked for again.
    """

    def __init__(self, cpu: Device, nvml: Nvml | NvmlAbsent) -> None:
        self._cpu = cpu
        self._nvml = nvml
        self._gpus = nvml.devices() if isinstance(nvml, Nvml) else []
        self._looked = time.monotonic()
        self.left_out: Mapping[str, str] = nvml.faults if isinstance(nvml, Nvml) else {}
        """The GPUs that cannot be used, and why, as they are now."""

    @classmethod
    def open(cls, cpu_memory: int | None = None) -> "Probe":
        return cls(cpu_device(cpu_memory), open_nvml())

    @property
    def driver(self) -> str:
        """The driver and its cards in one line."""
        return _describe(self._nvml, self._gpus)

    def devices(self) -> list[Device]:
        """GPUs in the driver's order, then the CPU."""
        return [*self._gpus, self._cpu]

    def facts(self) -> dict[str, DeviceFacts]:
        """Of every device, by id, as it is now."""
        facts = {self._cpu.id: cpu_facts(self._cpu)}
        if isinstance(self._nvml, Nvml):
            self._look_again(self._nvml)
            facts |= {gpu.id: self._nvml.facts(gpu) for gpu in self._gpus}
        return facts

    def _look_again(self, nvml: Nvml) -> None:
        """Add GPUs that were left out and can be read by now."""
        if not self.left_out or time.monotonic() < self._looked + _LOOKS:
            return
        self._looked = time.monotonic()
        known = {gpu.uuid for gpu in self._gpus}
        names = {gpu.id for gpu in self._gpus}
        new = [gpu for gpu in nvml.devices() if gpu.uuid not in known and gpu.id not in names]
        self._gpus = sorted([*self._gpus, *new], key=lambda gpu: (gpu.index or 0, gpu.id))

    def close(self) -> None:
        if isinstance(self._nvml, Nvml):
            self._nvml.close()


def _describe(nvml: Nvml | NvmlAbsent, gpus: list[Device]) -> str:
    """The driver and its cards in one line, for `status`."""
    if isinstance(nvml, NvmlAbsent):
        return f"{nvml.reason}: CPU only"
    cards = len({gpu.index for gpu in gpus})
    instances = sum("." in gpu.id for gpu in gpus)
    line = f"NVIDIA driver {nvml.version}, " + (_count(cards, "GPU") if cards else "no usable GPU")
    if instances:
        line += f" ({_count(instances, 'MIG instance')})"
    left_out = "".join(f"; {name} left out: {fault}" for name, fault in nvml.faults.items())
    return line + left_out


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
