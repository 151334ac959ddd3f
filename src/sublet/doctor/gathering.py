"""Gathers what the rules may know of this machine. Imports no TensorFlow and starts no broker."""

import ast
import contextlib
import glob
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sublet.client.program import interpreter
from sublet.devices.nvml import NvmlAbsent, open_nvml
from sublet.doctor.machine import Machine
from sublet.inside import cuda_libraries

_PCI = "/sys/bus/pci/devices/*/vendor"
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_STUB = "libcuda.so*"


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """What can be seen of this machine, in some milliseconds."""
    python = os.fsdecode(interpreter())
    packages = _packages(python)
    site = _site(packages, "tensorflow")
    built = {} if site is None else _build(site)
    driver, gpus = _cards()
    return Machine(
        environ=dict(environ),
        python=_version(python, packages),
        interpreter=python,
        tensorflow=_tensorflow(python, packages, site),
        keras=_distribution(packages, "keras") or "",
        tf_keras=None if not packages else _site(packages, "tf_keras") is not None,
        built=built,
        missing=tuple(cuda_libraries.missing_beside(str(site), built)) if site and gpus else (),
        card=_has_card(),
        driver=driver,
        too_old=cuda_libraries.too_old(built) if built and gpus else "",
        gpus=gpus,
        stubs=_stubs(environ),
    )


def _packages(python: str) -> list[Path]:
    """The directories in which this interpreter finds packages; none if that cannot be seen."""
    if os.path.realpath(python) == os.path.realpath(sys.executable) and _same_prefix(python):
        return [Path(one) for one in sys.path if one.endswith("-packages")]
    root = Path(python).parent.parent
    return [Path(one) for one in glob.glob(f"{glob.escape(str(root))}/lib*/python3*/*-packages")]


def _same_prefix(python: str) -> bool:
    return os.path.dirname(os.path.abspath(python)) == os.path.dirname(sys.executable)


def _site(packages: list[Path], name: str) -> Path | None:
    return next((one for one in packages if (one / name / "__init__.py").is_file()), None)


def _distribution(packages: list[Path], name: str) -> str | None:
    """The version of an installed distribution."""
    for place in packages:
        for found in place.glob(f"{name}-[0-9]*.dist-info"):
            return found.name.removeprefix(f"{name}-").removesuffix(".dist-info")
    return None


def _tensorflow(python: str, packages: list[Path], site: Path | None) -> str | None:
    if site is not None:
        names = ("tensorflow", "tensorflow_cpu", "tf_nightly", "tensorflow_rocm")
        found = (_distribution(packages, name) for name in names)
        return next((version for version in found if version), None)
    # Only of a virtual environment is it certain that packages are nowhere else.
    alone = (Path(python).parent.parent / "pyvenv.cfg").is_file() and bool(packages)
    return "" if alone else None


def _version(python: str, packages: list[Path]) -> tuple[int, int]:
    for place in packages:
        name = place.parent.name.removeprefix("python")
        major, _, minor = name.partition(".")
        if major.isdigit() and minor.isdigit():
            return int(major), int(minor)
    return sys.version_info[:2]


def _build(site: Path) -> dict[str, object]:
    """What TensorFlow says of how it was built, read from its file."""
    path = site / "tensorflow" / "python" / "platform" / "build_info.py"
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                return dict(ast.literal_eval(node.value.args[0]))
    return {}


def _cards() -> tuple[str | None, tuple[str, ...]]:
    """Why the driver cannot be used, and the UUIDs of its cards."""
    nvml = open_nvml()
    if isinstance(nvml, NvmlAbsent):
        return nvml.reason, ()
    with contextlib.closing(nvml):
        return "", tuple(one.uuid or "" for one in nvml.devices())


def _has_card() -> bool:
    for path in map(Path, glob.glob(_PCI)):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == _NVIDIA:
                return (path.parent / "class").read_text().startswith(_DISPLAY)
    return False


def _stubs(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Directories named `stubs` on the search path that have a libcuda."""
    places = environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return tuple(
        one
        for one in places
        if os.path.basename(one.rstrip("/")) == "stubs"
        and glob.glob(os.path.join(glob.escape(one), _STUB))
    )
