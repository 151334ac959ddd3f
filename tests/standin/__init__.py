"""A machine with stand-in NVIDIA cards, so that our code, pynvml and the stock TensorFlow wheel run
for real on a machine without a GPU. README.md says what this proves, and what it cannot.

    machine = Machine(tmp_path / "machine", Gpu(total=8 * GiB))
    subprocess.run([...], env=os.environ | machine.environ)

Only a child can have the driver: a library is found when a process loads it first.
"""

import os
import re
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from standin.building import library

__all__ = ["Gpu", "GpuProcess", "Instance", "Machine"]

_XLA_FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="
_MiB = 1024**2
_GiB = 1024**3


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU. Kind: C computes, G draws, M is a client of MPS. None: not available."""

    pid: int
    bytes: int | None
    kind: str = "C"


@dataclass(frozen=True)
class Instance:
    """A MIG instance in one of the seven slots of a GPU."""

    slot: int
    uuid: str
    name: str = "Standin A100 MIG 1g.5gb"
    total: int = 5 * _GiB
    used: int = 0
    reserved: int = 0
    processes: tuple[GpuProcess, ...] = ()
    error: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU. `used` and `processes` are those of strangers that the test makes up; what programs
    take through the driver comes on top. `error` is what every call of NVML on it returns,
    `list_error` what its process lists do."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    name: str = "Standin RTX 4090"
    total: int = 24 * _GiB
    used: int = 0
    reserved: int = 0
    processes: tuple[GpuProcess, ...] = ()
    compute: tuple[int, int] = (8, 9)
    processors: int = 108
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    error: int = 0
    list_error: int = 0
    memory_v2: bool = True


class Machine:
    """Cards, who holds what of them, and what was asked of their driver: a directory of its own."""

    def __init__(
        self,
        directory: Path,
        *gpus: Gpu,
        context: int = 256 * _MiB,
        workspace: int = 0,
        handle: int = 0,
        computes: bool = True,
        missing: Sequence[str] = (),
        cuda: int = 12050,
    ) -> None:
        """`context` is what a process takes of a card before it has allocated anything, `workspace`
        what each convolution asks for, `handle` what one of cuBLAS or cuDNN takes. On a
        machine that does not compute kernels do nothing, and memory that nobody copies to is never
        touched: for programs that only hold it. `missing` libraries are not installed. `cuda` is
        the newest CUDA that the driver knows, as cuDriverGetVersion says it."""
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._facts = [
            f"cuda {cuda}",
            f"context {context}",
            f"workspace {workspace}",
            f"handle {handle}",
            f"computes {int(computes)}",
        ]
        libraries = directory / "lib"
        libraries.mkdir(exist_ok=True)
        for built in library().iterdir():
            if built.name not in missing:
                (libraries / built.name).symlink_to(built)
        path = os.pathsep.join([str(libraries), os.environ.get("PATH", os.defpath)])
        self.environ = {
            "LD_LIBRARY_PATH": str(libraries),
            "PATH": path,  # TensorFlow looks for ptxas there.
            "STANDIN": str(directory),
        }
        """What a child needs that shall have these cards."""
        if computes:
            # Work that XLA has put into a CUDA graph is not done; autotuning takes minutes.
            self.environ["XLA_FLAGS"] = _XLA_FLAGS
        self.has(*gpus)

    def has(self, *gpus: Gpu, driver: str = "570.86.10", init: int = 0) -> None:
        """Say what the driver reports from now on; a reader sees the old or the new, never a half.
        A program that has started CUDA keeps the cards that it has found, as on a real machine."""
        lines = [f"driver {driver}", f"init {init}", *self._facts]
        for gpu in gpus:
            lines += [f"gpu {gpu.uuid}", f"compute {gpu.compute[0]} {gpu.compute[1]}"]
            lines += [f"mig {int(gpu.mig)}", f"list_error {gpu.list_error}"]
            lines += [f"processors {gpu.processors}"]
            lines += [f"memory_v2 {int(gpu.memory_v2)}", *_unit_lines(gpu)]
            for instance in gpu.instances:
                lines += [f"instance {instance.slot} {instance.uuid}", *_unit_lines(instance)]
        # Two threads may say so at once.
        draft = self._directory / f"machine.{threading.get_ident()}"
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self._directory / "machine")

    def held(self, uuid: str) -> dict[int, int]:
        """Bytes of the card that processes hold, by their numbers. Those that have died since the
        driver was last asked are among them."""
        path = self._directory / "ledger"
        data = path.read_bytes() if path.exists() else b""
        return {
            pid: taken
            for pid, _, taken, name in _ENTRY.iter_unpack(data)
            if pid and name.partition(b"\0")[0] == uuid.encode()
        }

    def log(self, pattern: str = "") -> list[tuple[int, str]]:
        """What was asked of the driver and matches, with the process that did, in order."""
        path = self._directory / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        parts = [line.partition(" ") for line in lines]
        return [(int(pid), what) for pid, _, what in parts if re.match(pattern, what)]

    def refusals(self) -> list[str]:
        """Requests for memory that the driver has refused, because the card had less left."""
        return [what for _, what in self.log("refused ")]


_ENTRY = struct.Struct("i4xQQ96s")
"""An entry of the ledger: the process, when it started, bytes, the card (`src/ledger.c`)."""


def _unit_lines(unit: Gpu | Instance) -> list[str]:
    return [
        f"name {unit.name}",
        f"memory {unit.total} {unit.reserved} {unit.used}",
        f"error {unit.error}",
        *(f"process {p.kind} {p.pid} {-1 if p.bytes is None else p.bytes}" for p in unit.processes),
    ]
