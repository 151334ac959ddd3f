"""Builds the stand-in library, once for each state of its sources and of the TensorFlow wheel.

The wheel says which names its CUDA code may look up. Those that `src` does not write get a function
that notes its first call and then succeeds (mathematics) or is not supported (CUDA).
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SOURCES = Path(__file__).with_name("src")
_CACHE = Path(__file__).parents[2] / "build" / "standin"
_NAMES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libnccl.so.2",
    "libnvidia-ml.so.1",
)
_FLAGS = ("-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")
"""A driver's signatures are not ours: what the stand-in has no use for is named all the same."""
_LOOKED_UP = re.compile(r"(cu[A-Z]|cuda[A-Z]|__cuda|cublas|cudnn|cufft|cusparse|nccl)\w*")
_OF_CUDA = re.compile(r"__cuda|cu[A-Z]|cuda[A-Z]")
_NOT_SUPPORTED = 801


def library() -> Path:
    """The directory with the library under all of its names, for LD_LIBRARY_PATH. Skips the test
    where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("no C compiler (cc, nm): the stand-in driver cannot be built")
    sources = sorted(_SOURCES.iterdir())
    wheel = _wheel_library()
    state = [Path(__file__).read_bytes(), *(source.read_bytes() for source in sources)]
    state += (
        [f"{wheel} {wheel.stat().st_size} {wheel.stat().st_mtime_ns}".encode()] if wheel else []
    )
    directory = _CACHE / hashlib.sha256(b"\0".join(state)).hexdigest()[:16]
    if not directory.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as draft:
            built = Path(draft) / "lib"
            built.mkdir()
            _build(compiler, [one for one in sources if one.suffix == ".c"], wheel, built)
            try:
                built.rename(directory)
            except OSError:
                assert directory.is_dir()  # Another process of the tests was quicker.
    return directory


def _build(compiler: str, sources: list[Path], wheel: Path | None, directory: Path) -> None:
    shared = directory / "standin.so"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        for source, target in zip(sources, objects, strict=True):
            _run(compiler, *_FLAGS, "-c", source, "-o", target)
        rest = Path(scratch) / "rest.c"
        looked_up = {
            name for name in (_defined(wheel) if wheel else ()) if _LOOKED_UP.fullmatch(name)
        }
        rest.write_text(_rest_of_it(sorted(looked_up - _defined(*objects))))
        link = ["-shared", "-Wl,-Bsymbolic", "-o", str(shared), "-lpthread", "-lm", "-ldl"]
        _run(compiler, "-fPIC", f"-I{_SOURCES}", *objects, rest, *link)
    for name in _NAMES:
        (directory / name).symlink_to(shared.name)
    shutil.copy(_SOURCES / "ptxas", directory)


def _rest_of_it(names: list[str]) -> str:
    lines = [
        '#include "machine.h"',
        "#define REST(name, code) \\",
        "    int name(void) { \\",
        "        static int told; \\",
        '        if (!told++) note("not made: " #name); \\',
        "        return code; \\",
        "    }",
    ]
    return "\n".join(
        [
            *lines,
            *(f"REST({name}, {_NOT_SUPPORTED * bool(_OF_CUDA.match(name))})" for name in names),
            "",
        ]
    )


def _wheel_library() -> Path | None:
    """The library of the installed wheel that has its tables of names. Imports no TensorFlow."""
    found = importlib.util.find_spec("tensorflow")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).with_name("libtensorflow_framework.so.2")
    return path if path.exists() else None


def _defined(*files: Path) -> set[str]:
    """The names that libraries or objects define for others."""
    found = set()
    for file in files:
        dynamic = ["-D"] if ".so" in file.name else []
        words = ["nm", *dynamic, "--extern-only", "--defined-only", str(file)]
        listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        found |= {line.split()[-1] for line in listed.splitlines()}
    return found


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True)
