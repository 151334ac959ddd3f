"""What the broker relies on, on a machine without a driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.devices import Probe, context_overhead
from sublet.devices.nvml import NvmlAbsent, open_nvml
from sublet.units import GiB, MiB


@pytest.fixture
def no_driver() -> None:
    if not isinstance(open_nvml(), NvmlAbsent):
        pytest.skip("this machine has an NVIDIA driver")


@pytest.mark.usefixtures("no_driver")
def test_a_machine_without_a_driver_is_normal() -> None:
    probe = Probe.open(cpu_memory=2 * GiB)
    assert probe.driver == "no NVIDIA driver: CPU only"
    assert [device.id for device in probe.devices()] == ["cpu"]
    assert list(probe.facts()) == ["cpu"]
    probe.close()


def test_a_library_that_is_no_driver_leaves_the_cpu_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    answer = run("from sublet.devices import Probe; print(Probe.open().driver)", tmp_path)
    assert "the NVIDIA driver library cannot be loaded" in answer
    assert answer.endswith(": CPU only")


def test_importing_the_package_loads_neither_pynvml_nor_psutil() -> None:
    answer = run("import sys, sublet.devices; print({'pynvml', 'psutil'} & set(sys.modules))")
    assert answer == "set()"


@pytest.mark.usefixtures("no_driver")
def test_a_machine_without_a_driver_never_pays_for_pynvml() -> None:
    answer = run(
        "import sys; from sublet.devices import Probe; Probe.open().facts();"
        "print('pynvml' in sys.modules)"
    )
    assert answer == "False"


@pytest.mark.parametrize(
    ("compute", "capacity", "overhead"),
    [
        ((8, 6), 2 * GiB - 1, 225),
        (None, 2 * GiB - 1, 225),
        ((3, 5), 8 * GiB, 500),
        ((6, 1), 8 * GiB, 500),
        ((7, 5), 8 * GiB, 1050),
        ((8, 9), 24 * GiB, 1536),
        ((9, 0), 80 * GiB, 1800),
        ((12, 0), 32 * GiB, 1800),
        (None, 24 * GiB, 1800),
    ],
)
def test_overhead_of_a_process_follows_tensorflows_own_table(
    compute: tuple[int, int] | None, capacity: int, overhead: int
) -> None:
    assert context_overhead(compute, capacity) == overhead * MiB


def run(code: str, library_path: Path | None = None) -> str:
    environ = os.environ | ({"LD_LIBRARY_PATH": str(library_path)} if library_path else {})
    child = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return child.stdout.strip()
