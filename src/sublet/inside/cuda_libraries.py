"""Why TensorFlow finds no GPU where the driver has one, and what to install."""

from __future__ import annotations

import ctypes
import glob
import os

INSTALL = "pip install 'tensorflow[and-cuda]'"

_OF_CUDA = {
    "12": ("cudart.so.12", "cublas.so.12", "cublasLt.so.12", "cufft.so.11", "cusolver.so.11"),
    "13": ("cudart.so.13", "cublas.so.13", "cublasLt.so.13", "cufft.so.12", "cusolver.so.12"),
}
"""What TensorFlow loads before it looks for a GPU, by the CUDA that it was built with."""


def why_no_gpu() -> str:
    """The reason, in words about TensorFlow as "it"."""
    if _built().get("is_cuda_build") is False:
        return "it was built without CUDA"
    if missing := missing_libraries():
        return f"it cannot load {', '.join(missing)}"
    return "its log says why, with TF_CPP_MIN_LOG_LEVEL=0"


def too_old(build: dict[str, object] | None = None) -> str:
    """Why TensorFlow cannot use a GPU that it finds: the driver knows no CUDA of the version that
    it was built with. Empty if it does, or if either is unknown."""
    built = str((_built() if build is None else build).get("cuda_version", ""))
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    major, minor = version.value // 1000, version.value % 1000 // 10
    if not built.partition(".")[0].isdigit() or not 0 < major < int(built.partition(".")[0]):
        return ""
    return f"the driver is too old: it knows CUDA {major}.{minor}, and TensorFlow needs {built}"


def missing_libraries() -> list[str]:
    """What TensorFlow needs of CUDA and cannot load. Loads libraries to see whether they can be."""
    import tensorflow

    packages = os.path.dirname(os.path.dirname(os.path.abspath(tensorflow.__file__)))
    return missing_beside(packages, _built())


def missing_beside(packages: str, build: dict[str, object]) -> list[str]:
    """The same of a TensorFlow in this directory that was built so, and need not be imported."""
    return [name for name in _needed(build) if not _is_there(name, packages)]


def _built() -> dict[str, object]:
    try:
        from tensorflow.python.platform import build_info

        return dict(build_info.build_info)
    except Exception:
        return {}


def _needed(built: dict[str, object]) -> list[str]:
    """The names of the libraries; none if this TensorFlow does not say what it was built with."""
    names = list(_OF_CUDA.get(str(built.get("cuda_version", "")).partition(".")[0], ()))
    if names:
        names.append("cusparse.so.12")
    if cudnn := str(built.get("cudnn_version", "")).partition(".")[0]:
        names.append(f"cudnn.so.{cudnn}")
    return [f"lib{name}" for name in names]


def _is_there(name: str, packages: str) -> bool:
    """Whether TensorFlow can load it, from the packages beside it or from the system."""
    if glob.glob(os.path.join(glob.escape(packages), "nvidia", "*", "lib", name)):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
