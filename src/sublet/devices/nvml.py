"""NVIDIA GPUs, as the driver's management library (NVML) sees them.

Owns every call to NVML and is the only importer of pynvml, on first use. Reports facts, never
decides, and never opens a CUDA context. A machine without a driver is normal: NvmlAbsent says why.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from sublet.domain.device import Device, DeviceFacts, Holder
from sublet.units import format_bytes

_LIBRARY = "libnvidia-ml.so.1"


class NvmlAbsent(NamedTuple):
    """There are no NVIDIA GPUs to be had here, and why, in words."""

    reason: str


class _Memory(NamedTuple):
    total: int
    reserved: int
    used: int
    free: int


def open_nvml() -> "Nvml | NvmlAbsent":
    """The driver, ready to be asked; whoever opens it closes it."""
    import ctypes

    # Asked before pynvml is imported, which takes megabytes that a machine without a driver
    # need not pay.
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        if "No such file" in str(error):
            return NvmlAbsent("no NVIDIA driver")
        return NvmlAbsent(f"the NVIDIA driver library cannot be loaded ({error})")

    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlAbsent(_why_not_opened(pynvml, error))
    return Nvml(pynvml)


class Nvml:
    """The open driver. For one thread; starts none of its own.

    A GPU that cannot be read never hides the others: `devices` leaves it out and names it in
    `faults`, `facts` answers with a fault.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._handles: dict[str, Any] = {}
        self.faults: dict[str, str] = {}

    @property
    def version(self) -> str:
        try:
            return str(self._api.nvmlSystemGetDriverVersion())
        except self._api.NVMLError:
            return "of unknown version"

    def devices(self) -> list[Device]:
        """The GPUs there are now; one in MIG mode is replaced by its instances."""
        self.faults.clear()
        try:
            count = self._api.nvmlDeviceGetCount()
        except self._api.NVMLError as error:
            self.faults["gpu*"] = self._words(error)
            return []
        return [device for index in range(count) for device in self._devices_of(index)]

    def facts(self, device: Device) -> DeviceFacts:
        """What is true of `device` now; all errors of the driver come back as its fault."""
        uuid = device.uuid or ""
        try:
            if uuid not in self._handles:
                self._handles[uuid] = self._api.nvmlDeviceGetHandleByUUID(uuid)
            handle = self._handles[uuid]
            memory = self._memory(handle)
            holders = self._holders(handle)
        except self._api.NVMLError as error:
            # A GPU that comes back after a reset is found by its UUID, not by its old handle.
            self._handles.pop(uuid, None)
            return DeviceFacts.unknown(device, self._words(error))
        # A page that the card has retired is as good as used.
        used = max(memory.used, device.capacity - memory.free)
        return DeviceFacts(device, used=used, available=memory.free, holders=holders)

    def close(self) -> None:
        self._handles.clear()
        # A driver that is already gone has nothing left to close.
        with suppress(self._api.NVMLError):
            self._api.nvmlShutdown()

    def _devices_of(self, index: int) -> Iterator[Device]:
        name = f"gpu{index}"
        try:
            parent = self._api.nvmlDeviceGetHandleByIndex(index)
            if not self._in_mig_mode(parent):
                yield self._device(name, index, parent, parent)
                return
            slots = self._api.nvmlDeviceGetMaxMigDeviceCount(parent)
        except self._api.NVMLError as error:
            self.faults[name] = self._words(error)
            return
        found = False
        for slot in range(slots):
            try:
                instance = self._api.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot)
                yield self._device(f"{name}.{slot}", index, instance, parent)
            except self._api.NVMLError_NotFound:
                continue
            except self._api.NVMLError as error:
                self.faults[f"{name}.{slot}"] = self._words(error)
            found = True
        if not found:
            self.faults[name] = (
                "MIG is on and no instance has been made; `nvidia-smi mig -cgi` makes one"
            )

    def _device(self, id_: str, index: int, handle: Any, parent: Any) -> Device:
        memory = self._memory(handle)
        uuid = str(self._api.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        kept = f", less {format_bytes(memory.reserved)} kept by the driver"
        return Device(
            id=id_,
            kind="gpu",
            name=str(self._api.nvmlDeviceGetName(handle)),
            capacity=memory.total - memory.reserved,
            index=index,
            uuid=uuid,
            source=f"NVML{kept if memory.reserved else ''}",
            compute=self._compute(parent),
            card=None if handle is parent else str(self._api.nvmlDeviceGetUUID(parent)),
        )

    def _in_mig_mode(self, handle: Any) -> bool:
        try:
            current, _pending = self._api.nvmlDeviceGetMigMode(handle)
        except (self._api.NVMLError_NotSupported, self._api.NVMLError_FunctionNotFound):
            return False
        return bool(current == self._api.NVML_DEVICE_MIG_ENABLE)

    def _memory(self, handle: Any) -> _Memory:
        # The older call counts what the driver reserves for itself as used. No lease can have it,
        # so it belongs to neither the capacity nor the use.
        try:
            info = self._api.nvmlDeviceGetMemoryInfo(handle, version=self._api.nvmlMemory_v2)
            reserved = int(info.reserved)
        except (
            self._api.NVMLError_FunctionNotFound,
            self._api.NVMLError_NotSupported,
            self._api.NVMLError_ArgumentVersionMismatch,
        ):
            info = self._api.nvmlDeviceGetMemoryInfo(handle)
            reserved = 0
        return _Memory(int(info.total), reserved, int(info.used), int(info.free))

    def _compute(self, handle: Any) -> tuple[int, int] | None:
        try:
            major, minor = self._api.nvmlDeviceGetCudaComputeCapability(handle)
        except self._api.NVMLError:
            return None
        return int(major), int(minor)

    def _holders(self, handle: Any) -> tuple[Holder, ...]:
        """The processes on a device, each once: one that computes and draws is in two lists."""
        sizes: dict[int, int | None] = {}
        for processes in (
            self._api.nvmlDeviceGetComputeRunningProcesses,
            self._api.nvmlDeviceGetGraphicsRunningProcesses,
            self._api.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            for process in self._listed(processes, handle):
                pid, size = int(process.pid), process.usedGpuMemory
                known = sizes.get(pid)
                # Each list gives the whole of the process, so the larger is right, not the sum.
                sizes[pid] = known if size is None else max(int(size), known or 0)
        return tuple(Holder(pid, _process_name(pid), size) for pid, size in sorted(sizes.items()))

    def _listed(self, processes: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
        # A driver that will not list processes (WSL, vGPU, permissions) still knows the memory.
        try:
            return processes(handle)
        except self._api.NVMLError_GpuIsLost:
            raise
        except self._api.NVMLError:
            return []

    def _words(self, error: Exception) -> str:
        match getattr(error, "value", None):
            case self._api.NVML_ERROR_GPU_IS_LOST:
                return "the GPU has fallen off the bus; a reset or a reboot brings it back"
            case self._api.NVML_ERROR_RESET_REQUIRED:
                return "the GPU needs a reset: `nvidia-smi --gpu-reset`"
            case self._api.NVML_ERROR_UNKNOWN:
                return "the driver reports an unknown error; the kernel log may say more"
        return f"the driver reports: {error}"


def _why_not_opened(api: Any, error: Exception) -> str:
    match getattr(error, "value", None):
        case api.NVML_ERROR_DRIVER_NOT_LOADED:
            return "the NVIDIA driver is installed and not loaded"
        case api.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return "the NVIDIA driver and its library differ in version (reboot after an update)"
        case api.NVML_ERROR_NO_PERMISSION:
            return "no permission to use the NVIDIA driver"
    return f"the NVIDIA driver does not start ({error})"


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        # Gone since, or in another container.
        return "?"
