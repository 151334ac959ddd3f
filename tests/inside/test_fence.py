"""The fence alone, over the stand-in driver: what it counts, refuses, tells and forwards. The test
plays the broker; the programs are small, and have no TensorFlow."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from standin import Gpu, Machine
from sublet.backends.local.worker_specs import fence_of
from sublet.client import fence_build
from sublet.domain.device import Device
from sublet.formats import attempt_files, fence_file, fence_library
from sublet.home import Home
from sublet.keeper import process_tree
from support.jobs import device, job
from support.sandbox import PATIENCE, wait_for

MIB = 1 << 20
TOLD = 640

DRIVER = """
import ctypes, json, os, sys, time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = c_void_p()
cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
cuda.cuCtxSetCurrent(context)

def look_up(name, version=12040, flags=0):
    found, status = c_void_p(), c_int()
    words = name.encode(), byref(found), version, c_uint64(flags), byref(status)
    assert cuda.cuGetProcAddress_v2(*words) == 0
    return ctypes.CFUNCTYPE(c_int)(found.value)

def again(name):
    # By the function that looks up functions, as it was looked up itself.
    found = c_void_p()
    assert look_up("cuGetProcAddress")(name.encode(), byref(found), 12040, c_uint64(0), None) == 0
    return ctypes.CFUNCTYPE(c_int)(found.value)

def take(mib, allocate=cuda.cuMemAlloc_v2, rest=()):
    at = c_uint64()
    code = allocate(byref(at), c_size_t(mib * MIB), *rest)
    return None if code else at

def info():
    left, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(left), byref(total)) == 0
    return [left.value // MIB, total.value // MIB]

def say(value):
    print(json.dumps(value), flush=True)
"""

EVERY_WAY = (
    DRIVER
    + """
def pitched(at, size):
    rows = c_size_t(size.value // 1024)
    return cuda.cuMemAllocPitch_v2(at, byref(c_size_t()), c_size_t(1000), rows, 4)

runtime = ctypes.CDLL("libcudart.so.12")
on_device, pool = (c_int * 8)(1, 0, 1, 0), c_void_p()
cuda.cuDeviceGetDefaultMemPool(byref(pool), 0)
free = cuda.cuMemFree_v2
ways = {
    "alloc": (cuda.cuMemAlloc_v2, (), free),
    "pitch": (pitched, (), free),
    "managed": (cuda.cuMemAllocManaged, (1,), free),
    "async": (cuda.cuMemAllocAsync, (None,), lambda at: cuda.cuMemFreeAsync(at, None)),
    "async of a thread": (
        cuda.cuMemAllocAsync_ptsz, (None,), lambda at: cuda.cuMemFreeAsync_ptsz(at, None)),
    "pool": (cuda.cuMemAllocFromPoolAsync, (pool, None), free),
    "physical": (cuda.cuMemCreate, (on_device, c_uint64(0)), cuda.cuMemRelease),
    "looked up": (look_up("cuMemAlloc"), (), look_up("cuMemFree")),
    "looked up for a thread": (look_up("cuMemAllocAsync", flags=2), (None,), free),
    "looked up twice": (again("cuMemAllocManaged"), (1,), free),
    "runtime": (runtime.cudaMalloc, (), runtime.cudaFree),
}
def at_most(allocate, rest, release):
    kept = []
    while len(kept) < 100 and (at := take(64, allocate, rest)):
        kept.append(at)
    refused = info()[0]
    for at in kept:
        assert release(at) == 0
    return [64 * len(kept), refused]

say({name: at_most(*way) for name, way in ways.items()})

kept = [take(64) for _ in range(8)]
before = take(64)
cuda.cuDevicePrimaryCtxReset_v2(0)
cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
again = [take(64) for _ in range(8)]
total = c_size_t()
cuda.cuDeviceTotalMem_v2(byref(total), 0)
host = c_uint64()
say({
    "before": before is None,
    "after a reset": all(again),
    "total": total.value // MIB,
    "on the host": cuda.cuMemCreate(
        byref(host), c_size_t(64 * MIB), (c_int * 8)(1, 0, 2, 0), c_uint64(0)),
    "forwarded": cuda.cuCtxSynchronize(),
})
"""
)

HOLD = (
    DRIVER
    + """
kept = []
for line in sys.stdin:
    start = time.monotonic()
    got = take(int(line))
    kept.append(got)
    say({"got": got is not None, "waited": time.monotonic() - start, "info": info()})
"""
)

FORK = (
    DRIVER
    + """
kept = take(256)
child = os.fork()
if not child:
    # Without a fence a child of a program that has started CUDA is refused in the same way.
    code = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(MIB))
    os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
say([code, take(512) is not None, take(256) is not None])
"""
)


class Lease:
    """An attempt's directory with a fence, and the programs that run in it."""

    def __init__(self, machine: Machine, fence: str, directory: Path, started: ExitStack) -> None:
        self.directory = str(directory)
        self.started = started
        self.environ = {
            **os.environ,
            **machine.environ,
            "LD_LIBRARY_PATH": f"{fence}:{machine.environ['LD_LIBRARY_PATH']}",
            "SUBLET_FENCE_FILE": str(directory / fence_file.NAME),
        }

    def make(self, bound: int, most: int, version: str = "") -> None:
        version = version or fence_library.version()
        fence_file.create(self.directory, version, bound * MIB, most * MIB, TOLD * MIB)

    def start(self, program: str) -> "subprocess.Popen[str]":
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        words = [sys.executable, "-c", program]
        child = subprocess.Popen(words, env=self.environ, text=True, **streams)
        self.started.enter_context(child)
        self.started.callback(child.kill)
        return child

    def run(self, program: str) -> list[Any]:
        out, _ = self.start(program).communicate(timeout=PATIENCE)
        return [json.loads(line) for line in out.splitlines()]


def take(child: "subprocess.Popen[str]", mib: int) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{mib}\n")
    child.stdin.flush()


def answer(child: "subprocess.Popen[str]") -> dict[str, Any]:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, str]:
    """A machine with a card, and a fence for its driver."""
    root = tmp_path_factory.mktemp("fence")
    machine = Machine(root / "machine", Gpu(uuid="GPU-a", total=8 << 30), computes=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", machine.environ["LD_LIBRARY_PATH"])
        fence = fence_build.find_or_build(Home(root / "home"))
    assert fence.startswith(str(root / "home" / "fence"))
    return machine, fence


@pytest.fixture
def lease(built: tuple[Machine, str], tmp_path: Path) -> Iterator[Lease]:
    with ExitStack() as started:
        yield Lease(*built, tmp_path, started)


def test_every_way_to_allocate_is_held(lease: Lease) -> None:
    """Also through the CUDA runtime, and by functions that the driver was asked for. Programs are
    told of a smaller card; what ends with its context is not counted any more."""
    lease.make(bound=512, most=512)
    most, rest = lease.run(EVERY_WAY)
    assert most == {name: [512, TOLD - 512] for name in most}
    assert len(most) == 11
    assert rest == {
        "before": True,
        "after a reset": True,
        "total": TOLD,
        "on the host": 0,
        "forwarded": 0,
    }


def test_the_processes_of_a_lease_are_held_together(lease: Lease) -> None:
    """And what a killed one held is free for the others."""
    lease.make(bound=512, most=512)
    one, other = lease.start(HOLD), lease.start(HOLD)
    take(one, 300)
    assert answer(one)["got"]
    take(other, 300)
    refused = answer(other)
    assert (refused["got"], refused["info"]) == (False, [TOLD - 300, TOLD])
    known = {holder.pid: holder.start for holder in fence_file.holders(lease.directory)}
    assert known == {child.pid: process_tree.start_time(child.pid) for child in (one, other)}
    one.send_signal(signal.SIGKILL)
    one.wait()
    take(other, 400)
    assert answer(other)["got"]
    assert sum(holder.held for holder in fence_file.holders(lease.directory)) == 400 * MIB


def test_a_lack_is_told_and_ends_with_the_raise(lease: Lease) -> None:
    """The file says of whom and how much; it is gone when the allocation has succeeded."""
    lease.make(bound=256, most=1024)
    program = lease.start(HOLD)
    take(program, 200)
    assert answer(program)["got"]
    take(program, 500)
    (name,) = wait_for(lambda: lacks(lease), "it lacks memory")
    assert attempt_files.lack(name) == (program.pid, (200 + 500 - 256) * MIB)
    fence_file.write_bound(lease.directory, 700 * MIB)
    assert answer(program)["got"]
    assert lacks(lease) == []
    take(program, 500)  # More than it may ever have: nobody is asked.
    assert not answer(program)["got"]
    take(program, 1)
    (name,) = wait_for(lambda: lacks(lease), "it lacks memory again")
    assert name.split("-")[2] == "1"
    fence_file.write_bound(lease.directory, 701 * MIB)
    assert answer(program)["got"]
    fence_file.write_bound(lease.directory, 600 * MIB)  # Less than it holds: it keeps that.
    assert fence_file.read_bound(lease.directory) == 600 * MIB
    assert sum(holder.held for holder in fence_file.holders(lease.directory)) == 701 * MIB


@pytest.mark.slow
def test_a_lack_that_nobody_answers_ends_and_the_next_one_sooner(lease: Lease) -> None:
    """An allocator that tries ever smaller sizes is not kept for ten seconds each time."""
    lease.make(bound=256, most=1024)
    program = lease.start(HOLD)
    for mib in (500, 450, 400):
        take(program, mib)
    first, second, third = (answer(program) for _ in range(3))
    assert [one["got"] for one in (first, second, third)] == [False] * 3
    assert second["waited"] + third["waited"] < first["waited"]
    assert lacks(lease) == []
    take(program, 256)
    assert answer(program)["got"]


def test_a_child_that_is_forked_is_as_without_a_fence(lease: Lease) -> None:
    lease.make(bound=768, most=768)
    not_initialized = 3
    assert lease.run(FORK) == [[not_initialized, True, False]]


@pytest.mark.parametrize("wrong", ["version", "no file", "cut short", "torn"])
def test_what_is_in_doubt_is_allowed(lease: Lease, wrong: str) -> None:
    """Terms of another version, none at all, or such as make no sense."""
    if wrong != "no file":
        lease.make(bound=128, most=128, version="0" * 16 if wrong == "version" else "")
    path = Path(lease.directory) / fence_file.NAME
    if wrong == "cut short":
        path.write_bytes(path.read_bytes()[:4096])
    if wrong == "torn":
        with path.open("r+b") as file:
            file.seek(16)
            file.write(b"\1")
    program = lease.start(HOLD)
    take(program, 1024)
    assert answer(program)["got"]


def lacks(lease: Lease) -> list[str]:
    return [name for name in os.listdir(lease.directory) if attempt_files.lack(name)]


def test_a_fence_that_is_not_as_it_was_built_is_not_used_and_built_anew(
    built: tuple[Machine, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, fence = built
    home = Home(tmp_path / "home")
    mine = tmp_path / "home" / "fence" / Path(fence).name
    library = mine / fence_library.LIBRARY
    changes: dict[str, Callable[[], object]] = {
        f"others can write to {library}": lambda: library.chmod(0o522),
        f"others can write to {mine}": lambda: mine.chmod(0o770),
        f"{library} is not what was built": lambda: (mine / "digest").write_text("0" * 64),
        f"{mine}: No such file or directory": lambda: library.unlink(),
    }
    for why, change in changes.items():
        shutil.copytree(fence, mine, symlinks=True)
        assert fence_library.why_unusable(str(mine)) == ""
        change()
        assert fence_library.why_unusable(str(mine)) == why
        shutil.rmtree(mine)
    shutil.copytree(fence, mine, symlinks=True)
    library.unlink()
    monkeypatch.setenv("LD_LIBRARY_PATH", machine.environ["LD_LIBRARY_PATH"])
    assert fence_build.find_or_build(home) == str(mine)
    assert fence_library.why_unusable(str(mine)) == ""
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700


def test_only_a_fence_of_the_brokers_own_version_is_used_and_on_one_gpu(
    built: tuple[Machine, str],
) -> None:
    fence = built[1]
    gpu, cpu = device("gpu0"), device("cpu")
    other = str(Path(fence).with_name(f"{'0' * 16}-{Path(fence).name.partition('-')[2]}"))

    def given(asked: str, *devices: Device) -> tuple[str, str]:
        return fence_of(replace(job(), spec=replace(job().spec, fence=asked)), devices)

    assert given(fence, gpu) == (fence, "")
    assert given("", gpu) == given(fence, cpu) == given("no compiler", cpu) == ("", "")
    assert given("no compiler", gpu) == ("", "no compiler")
    assert given(other, gpu) == ("", "it was built by another version of Sublet")
    assert given(fence, gpu, gpu) == ("", "it holds programs on one GPU only")


def test_without_a_compiler_or_with_mps_it_is_said_why(
    built: tuple[Machine, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, _ = built
    home = Home(tmp_path / "home")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", machine.environ["LD_LIBRARY_PATH"])
    assert fence_build.find_or_build(home) == "there is no C compiler (cc)"
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/pipe")
    assert fence_build.find_or_build(home) == "the driver is shared through MPS"
