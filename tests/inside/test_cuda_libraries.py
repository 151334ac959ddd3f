"""Why TensorFlow cannot use a GPU, for builds and drivers that are not here."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from sublet.inside import cuda_libraries


def built(monkeypatch: pytest.MonkeyPatch, cuda: int | None = None, **facts: Any) -> None:
    """TensorFlow was built with these facts, and the driver knows this CUDA; None without one."""

    def version(at: Any) -> int:
        at._obj.value = cuda
        return 0

    def load(name: str) -> Any:
        if cuda is None:
            raise OSError(name)
        return SimpleNamespace(cuDriverGetVersion=version)

    monkeypatch.setattr(cuda_libraries, "_built", lambda: facts)
    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_wheel_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, is_cuda_build=False)
    assert cuda_libraries.why_no_gpu() == "it was built without CUDA"


@pytest.mark.parametrize(
    ("cuda", "wheel", "words"),
    [
        (11040, "12.5.1", "it knows CUDA 11.4, and TensorFlow needs 12.5.1"),
        (12020, "12.5.1", ""),
        (13000, "12.5.1", ""),
        (0, "12.5.1", ""),
        (None, "12.5.1", ""),
        (11040, "", ""),
    ],
)
def test_a_driver_is_too_old_if_its_cuda_is_of_an_older_major_version(
    cuda: int | None, wheel: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known is not blamed."""
    built(monkeypatch, cuda, cuda_version=wheel)
    assert cuda_libraries.too_old() == (f"the driver is too old: {words}" if words else "")
