"""The device that the twenty programs share: the CPU, or a stand-in GPU of tests/standin.

Owns what is particular to each: its size, what programs hold of it, and what people do by hand
there. Everything else of the demo is the same for both.
"""

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from demo.catalogue import PROGRAMS
from demo.mark import pss
from sublet.units import GiB, MiB, format_bytes

_TESTS = Path(__file__).resolve().parent.parent / "tests"


@dataclass(frozen=True)
class Way:
    """What people do without Sublet: plain `python program.py` with these variables set."""

    name: str
    words: str
    environ: dict[str, str]
    unlimited: bool = False
    """Whether no program has less memory than it would have on its own."""


class Device(Protocol):
    """What the demo asks of a device."""

    id: str
    capacity: int
    words: str
    note: str
    """How memory is measured there, and what is to be known of the results."""
    environ: dict[str, str]
    """What programs need to find it, and no other."""
    ways: tuple[Way, ...]
    patience: float
    """Seconds after which whatever still runs has hung."""

    def held(self, pids: Iterable[int]) -> dict[int, int]:
        """The bytes that these processes hold of it."""


class Cpu:
    """The machine's own memory, of which programs get 2 GiB."""

    id = "cpu"
    capacity = 2 * GiB
    words = f"one CPU device of {format_bytes(capacity)}"
    note = "Memory is what all their processes hold together (PSS), seen from outside."
    patience = 600.0

    def __init__(self) -> None:
        share = self.capacity // len(PROGRAMS) // MiB
        # A hard limit of TensorFlow's allocator: what per_process_gpu_memory_fraction is on a GPU.
        limit = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(share)}
        self.environ = {
            "CUDA_VISIBLE_DEVICES": "-1",
            "SUBLET_CPU_MEMORY": f"{self.capacity // MiB}MiB",
        }
        self.ways: tuple[Way, ...] = (
            Way("a fixed fraction", f"a fixed fraction: a limit of {share} MiB for each", limit),
            Way("growth", "growth: no ceiling, all at once", {}, unlimited=True),
        )

    def held(self, pids: Iterable[int]) -> dict[int, int]:
        return {pid: pss(pid) for pid in pids}


class StandInCard:
    """A card of 8 GiB that is not there: the stock TensorFlow wheel on a stand-in driver."""

    id = "gpu0"
    capacity = 8 * GiB
    words = f"one stand-in GPU of {format_bytes(capacity)}"
    note = (
        "TensorFlow's own GPU code, on a driver that stands in for NVIDIA's. Memory is what that "
        "driver has given their processes. Kernels are interpreted, so times mean little; "
        "convolutions are not computed, so the results of cnn and resnet mean nothing."
    )
    patience = 1800.0
    ways: tuple[Way, ...] = (
        Way("by default", "TensorFlow's default: the first to come takes the card", {}),
        Way("growth", "growth: no ceiling, all at once", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    )

    def __init__(self, folder: Path) -> None:
        if shutil.which("cc") is None or shutil.which("nm") is None:
            sys.exit("The stand-in driver is built with cc and nm, and they are not here.")
        sys.path.insert(0, str(_TESTS))
        from standin import Gpu, Machine

        # XLA's results are right below compute capability 8 (tests/standin/README.md).
        card = Gpu(uuid="GPU-demo", total=self.capacity, compute=(7, 5))
        self._machine = Machine(folder, card)
        self._uuid = card.uuid
        self.environ = self._machine.environ

    def held(self, pids: Iterable[int]) -> dict[int, int]:
        held = self._machine.held(self._uuid)
        return {pid: held.get(pid, 0) for pid in pids}

    def refusals(self) -> list[str]:
        """What the driver has refused to give."""
        return self._machine.refusals()
