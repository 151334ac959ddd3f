"""Builds the fence: a library in the driver's place that holds all of a program to its lease.

It is built with the machine's own C compiler for the driver's library that a program would find
from here, once, into the state directory; `formats/fence_library.py` says when one may be used.
Nothing here starts the driver. A child loads the new library to see whether it can be.
"""

import os
import shutil
import subprocess
import sys
import tempfile

from sublet.formats import fence_library
from sublet.home import Home

_MPS = "/tmp/nvidia-mps"
_PATIENCE = 120.0
_FLAGS = ("-O2", "-fPIC", "-shared")
_TRY = """
import ctypes, sys
fence = ctypes.CDLL(sys.argv[1])
if ctypes.CDLL("libcuda.so.1")._handle != fence._handle:
    sys.exit("another libcuda.so.1 is found before it")
fence.sublet_fence_version.restype = fence.sublet_fence_missing.restype = ctypes.c_char_p
if fence.sublet_fence_version() != sys.argv[2].encode():
    sys.exit("it is of another version")
if missing := fence.sublet_fence_missing():
    sys.exit(f"the driver has no {missing.decode()}")
if fence.cuDriverGetVersion(ctypes.byref(ctypes.c_int())):
    sys.exit("the driver does not answer through it")
"""


def find_or_build(home: Home) -> str:
    """The directory of the fence for programs that are started from here, built if need be; if
    there can be none, why, which never begins with a slash."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or os.path.exists(_MPS):
        return "the driver is shared through MPS"
    driver = find_driver(home)
    if driver is None:
        return "no libcuda.so.1 is found"
    directory = fence_library.directory(home.name, driver)
    if not fence_library.why_unusable(directory):
        return directory
    home.make()
    try:
        return _build(driver, directory) or directory
    except (OSError, subprocess.SubprocessError) as error:
        return f"it could not be built: {error}"


def find_driver(home: Home) -> str | None:
    """The path of the driver's library, as a program that is started here would find it."""
    ours = os.path.join(home.name, "fence", "")
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        path = os.path.join(os.path.abspath(entry), fence_library.LIBRARY)
        if entry and not path.startswith(ours) and os.path.isfile(path):
            return path
    found = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        return None
    listed = subprocess.run([found, "-p"], capture_output=True, text=True, timeout=_PATIENCE).stdout
    wide = "x86-64" if os.uname().machine == "x86_64" else "AArch64"
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith(f"{fence_library.LIBRARY} ") and wide in name and os.path.isfile(path):
            return path
    return None


def _build(driver: str, directory: str) -> str:
    """Build and try it; returns why it cannot be used, or nothing."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return "there is no C compiler (cc)"
    if set('"\\,$').intersection(driver):
        return f"the path {driver} cannot be written into it"
    parent = os.path.dirname(directory)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".new-") as draft:
        # The driver's library and ours have one soname, by which ours would need itself. So the
        # path stands for it: as the soname of an empty library that takes its place for the linker.
        proxy = os.path.join(draft, "driver.so")
        built = os.path.join(draft, "built")
        library = os.path.join(built, fence_library.LIBRARY)
        os.mkdir(built, mode=0o700)
        version = fence_library.version()
        soname = "-Wl,-soname,"
        why = _run(compiler, *_FLAGS, f"{soname}{driver}", "-o", proxy, "-x", "c", os.devnull)
        why = why or _run(
            *(compiler, *_FLAGS, f'-DVERSION="{version}"', f'-DDRIVER="{driver}"'),
            *(f"{soname}{fence_library.LIBRARY}", "-Wl,-Bsymbolic", "-Wl,--no-as-needed"),
            *("-o", library, fence_library.SOURCE, proxy, "-ldl", "-lpthread"),
        )
        if why:
            return f"{compiler} failed: {why}"
        if why := _run(sys.executable, "-c", _TRY, library, version):
            return f"it does not work with {driver}: {why}"
        os.chmod(library, 0o500)
        # Under the name that some look for, for processes that find it by the path.
        os.symlink(fence_library.LIBRARY, os.path.join(built, "libcuda.so"))
        fence_library.note_digest(built)
        try:
            os.rename(built, directory)
        except OSError:
            # Another one was quicker, or what is there cannot be used.
            if fence_library.why_unusable(directory):
                shutil.rmtree(directory, ignore_errors=True)
                os.rename(built, directory)
    return ""


def _run(*words: str) -> str:
    """Run a command to its end; returns the last line of what it says if it fails."""
    environ = {name: text for name, text in os.environ.items() if name != "SUBLET_FENCE_FILE"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, env=environ)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
