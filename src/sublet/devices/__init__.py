"""What devices there are and what is on them: facts for the broker, decisions for nobody.

Probe ─┬─ cpu ── psutil, cgroup
       └─ nvml ─ pynvml, where there is a driver
"""

from sublet.devices.cpu import cpu_device, cpu_facts, processors
from sublet.devices.nvml import Nvml, NvmlAbsent, open_nvml
from sublet.devices.overhead import context_overhead
from sublet.domain.device import Device, DeviceFacts

__all__ = ["Probe", "context_overhead", "processors"]


class Probe:
    """The devices of this machine, found once; only what is on them is read again.

    For one thread. A device that fails later stays in the list, with a fault in its facts.
    """

    def __init__(self, cpu: Device, nvml: Nvml | NvmlAbsent) -> None:
        self._cpu = cpu
        self._nvml = nvml
        self._gpus = nvml.devices() if isinstance(nvml, Nvml) else []
        self.driver = _describe(nvml, self._gpus)

    @classmethod
    def open(cls, cpu_memory: int | None = None) -> "Probe":
        return cls(cpu_device(cpu_memory), open_nvml())

    def devices(self) -> list[Device]:
        """GPUs in the driver's order, then the CPU."""
        return [*self._gpus, self._cpu]

    def facts(self) -> dict[str, DeviceFacts]:
        """Of every device, by id, as it is now."""
        facts = {self._cpu.id: cpu_facts(self._cpu)}
        if isinstance(self._nvml, Nvml):
            facts |= {gpu.id: self._nvml.facts(gpu) for gpu in self._gpus}
        return facts

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
