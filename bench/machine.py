"""Facts about the machine that a figure depends on; nothing that would name it."""

import importlib.metadata
import os
import platform
from typing import Any

import psutil

_PACKAGES = ("sublet", "tensorflow", "keras", "numpy", "ray", "joblib")


def facts() -> dict[str, Any]:
    """Cores, memory, versions, and how busy the machine was already."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "load_before": round(os.getloadavg()[0], 2),
    }


def line(machine: dict[str, Any]) -> str:
    """The machine in one line of a table's head."""
    return (
        f"{machine['cores']} cores, {machine['ram_gib']:g} GiB, Python {machine['python']}, "
        f"TensorFlow {machine['tensorflow']}, load {machine['load_before']:g}"
    )


def version(package: str) -> str | None:
    """The installed version; None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
