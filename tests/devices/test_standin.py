"""The stand-in driver itself: what tests on it rely on is as on a real card."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from standin import Gpu, GpuProcess, Instance, Machine

NewMachine = Callable[..., Machine]
MIB, GIB = 1 << 20, 1 << 30
SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 2, 3

CUDA = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")

def begin():
    context = ctypes.c_void_p()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    return code or cuda.cuCtxSetCurrent(context)

def take(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(mib << 20))

def left():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value >> 20

def count():
    number = ctypes.c_int()
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number)) else number.value
"""


def on(machine: Machine, code: str, **environ: str) -> "subprocess.Popen[str]":
    """Start this code on the machine; its input is open."""
    return subprocess.Popen(
        [sys.executable, "-c", CUDA + code],
        env=os.environ | machine.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(machine: Machine, code: str, **environ: str) -> str:
    child = on(machine, code, **environ)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return out.strip()


def test_a_process_finds_what_others_have_left_and_the_dead_hold_nothing(
    new_machine: NewMachine,
) -> None:
    machine = new_machine(Gpu(uuid="GPU-a", total=2 * GIB), context=100 * MIB)
    holder = on(machine, "print(begin(), take(1000), flush=True); sys.stdin.read()")
    assert holder.stdout is not None
    assert holder.stdout.readline().split() == [str(SUCCESS)] * 2
    assert machine.held("GPU-a") == {holder.pid: 1100 * MIB}
    asked = "print(begin(), left(), take(900), take(800))"
    found = answer(machine, asked).split()
    assert found == [str(SUCCESS), str(2048 - 1100 - 100), str(OUT_OF_MEMORY), str(SUCCESS)]
    assert machine.refusals() == [f"refused {900 * MIB} on GPU-a"]
    holder.kill()
    holder.communicate()
    assert answer(machine, asked).split()[1:] == [str(2048 - 100), str(SUCCESS), str(SUCCESS)]
    assert len(machine.refusals()) == 1


def test_strangers_that_come_later_leave_less(new_machine: NewMachine) -> None:
    machine = new_machine(Gpu(uuid="GPU-a", total=2 * GIB), context=0)
    child = on(machine, "print(begin(), left(), flush=True); sys.stdin.readline(); print(left())")
    assert child.stdout is not None
    assert child.stdout.readline().split() == [str(SUCCESS), "2048"]
    stranger = GpuProcess(1, 512 * MIB)
    machine.has(Gpu(uuid="GPU-a", total=2 * GIB, used=512 * MIB, processes=(stranger,)))
    assert child.communicate("\n")[0].strip() == "1536"


def test_a_child_forked_after_cuinit_has_no_driver(new_machine: NewMachine) -> None:
    """One that is forked before it has, as the workers of a warm process are."""
    code = """
first = os.fork()
if not first: os._exit(begin() or take(10))
code = begin()
second = os.fork()
if not second: os._exit(cuda.cuInit(0))
print(code, *(os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in (first, second)))
"""
    machine = new_machine(Gpu())
    assert answer(machine, code).split() == [str(SUCCESS), str(SUCCESS), str(NOT_INITIALIZED)]
    assert len(machine.log("cuInit after a fork")) == 1


@pytest.mark.parametrize(
    ("wish", "seen"),
    [("0,1", 2), ("1", 1), ("GPU-b", 1), ("GPU-", 0), ("0,5,1", 1), ("0,0", 0), ("MIG-a,0", 1)],
)
def test_visible_devices_are_read_as_the_driver_reads_them(
    new_machine: NewMachine, wish: str, seen: int
) -> None:
    halves = (Instance(0, "MIG-a"), Instance(1, "MIG-b"))
    machine = new_machine(
        *(Gpu(uuid=f"GPU-{name}") for name in "bc"), Gpu(uuid="GPU-m", mig=True, instances=halves)
    )
    assert answer(machine, "print(count())", CUDA_VISIBLE_DEVICES=wish) == str(seen)
