"""A stand-in NVIDIA driver, so that our code and pynvml run for real on a machine without a GPU.

    config = tmp_path / "gpus"
    write_config(config, [Gpu(used=GiB)])
    subprocess.run([...], env=environment(build(tmp_path), config))

`write_config` may be called again at any time: a running child sees the new machine at its next
call. Only a child can have the driver: the library is found when a process loads it first.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("nvml.c")
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
    """A GPU. `error` is what every call on it returns, `list_error` what its process lists do."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    name: str = "Standin RTX 4090"
    total: int = 24 * _GiB
    used: int = 0
    reserved: int = 0
    processes: tuple[GpuProcess, ...] = ()
    compute: tuple[int, int] = (8, 9)
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    error: int = 0
    list_error: int = 0
    memory_v2: bool = True


def build(tmp_path: Path) -> Path:
    """Compile the driver; the directory it is in, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in driver cannot be built")
    directory = tmp_path / "driver"
    directory.mkdir(exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, _SOURCE],
        check=True,
    )
    return directory


def write_config(
    config: Path, gpus: Sequence[Gpu] = (), *, driver: str = "570.86.10", init: int = 0
) -> Path:
    """Say what the driver reports from now on; a reader sees the old or the new, never a half."""
    lines = [f"driver {driver}", f"init {init}"]
    for gpu in gpus:
        lines += [f"gpu {gpu.uuid}", f"compute {gpu.compute[0]} {gpu.compute[1]}"]
        lines += [f"mig {int(gpu.mig)}", f"list_error {gpu.list_error}"]
        lines += [f"memory_v2 {int(gpu.memory_v2)}", *_unit_lines(gpu)]
        for instance in gpu.instances:
            lines += [f"instance {instance.slot} {instance.uuid}", *_unit_lines(instance)]
    draft = config.with_name(f"{config.name}.draft")
    draft.write_text("\n".join(lines) + "\n")
    draft.replace(config)
    return config


def environment(driver: Path, config: Path) -> dict[str, str]:
    """The environment of a child that has this driver."""
    return os.environ | {"LD_LIBRARY_PATH": str(driver), "SUBLET_STANDIN_NVML": str(config)}


def _unit_lines(unit: Gpu | Instance) -> list[str]:
    return [
        f"name {unit.name}",
        f"memory {unit.total} {unit.reserved} {unit.used}",
        f"error {unit.error}",
        *(f"process {p.kind} {p.pid} {-1 if p.bytes is None else p.bytes}" for p in unit.processes),
    ]
