"""Processes of one program take from one ceiling: real children, on the CPU and on a GPU."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standin import Gpu, Machine
from sublet.formats import shares
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
MIB = 1 << 20

CHILDREN = """
import multiprocessing, os, sys, time

def await_file(name):
    while not os.path.exists(name): time.sleep(0.02)

def child(number, words):
    # Words: so many MiB to take in one piece, "import", or a file to wait for.
    if not words:
        return await_file("go")
    import tensorflow as tf
    kept = []
    for word in words:
        if word.isdigit():
            try:
                kept.append(tf.raw_ops.Empty(shape=[int(word) << 18], dtype=tf.float32))
            except tf.errors.ResourceExhaustedError as error:
                print(number, "refused", error.message.splitlines()[0][:400], flush=True)
                if sys.argv[1] == "dies":
                    raise
                return
        elif word != "import":
            open(f"{number}-{word}", "w").close()
            await_file(word)
    print(number, sum(len(one) for one in kept) >> 18, flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    started = [
        context.Process(target=child, args=(number, words.split()))
        for number, words in enumerate(sys.argv[2:])
    ]
    for one in started: one.start()
    for one in started: one.join()
    sys.exit(max(abs(one.exitcode) for one in started))
"""


@pytest.fixture(params=["cpu", "gpu"])
def place(
    request: pytest.FixtureRequest,
    new_machine: Callable[..., Machine],
    new_sandbox: NewSandbox,
) -> Sandbox:
    """A sandbox whose device is the CPU, or a card of 8 GiB."""
    environ: dict[str, str] = {}
    if request.param == "gpu":
        gpu = Gpu(uuid="GPU-a", total=8 << 30)
        environ = new_machine(gpu, context=256 * MIB, computes=False).environ
    sandbox = new_sandbox(**environ)
    sandbox.write("children.py", CHILDREN)
    return sandbox


def here(sandbox: Sandbox, *names: str) -> bool:
    return all((sandbox.work / name).exists() for name in names)


def limits(sandbox: Sandbox) -> dict[int, int]:
    """The shares of the processes of the first job, in MiB, by pid."""
    (directory,) = sandbox.home.glob("runs/1.1")
    return {one.pid: one.limit // MIB for one in shares.read(str(directory))}


def report(sandbox: Sandbox) -> dict[str, Any]:
    return json.loads((sandbox.work / "report.json").read_text())  # type: ignore[no-any-return]


def test_children_take_what_they_need_of_one_ceiling_and_the_report_has_their_sum(
    place: Sandbox,
) -> None:
    """Two take 200 MiB, one 100, one only imports TensorFlow, and one does not even that."""
    program = ["children.py", "lives", "100 100 go", "100 100 go", "100 go", "import go", ""]
    client = place.start("run", "-q", "--report", "report.json", "--memory", "1GiB", *program)
    wait_for(lambda: here(place, "0-go", "1-go", "2-go", "3-go"), "all have what they need")
    wait_for(lambda: place.status()["leases"][0]["peak"] >= 500 * MIB, "their sum is known")
    found = limits(place)
    place.write("go", "")
    out, _ = client.communicate()
    assert client.returncode == 0
    assert sorted(out.splitlines()) == ["0 200", "1 200", "2 100", "3 0"]
    assert len(found) == 3
    assert sum(found.values()) <= 1024
    assert 500 * MIB <= report(place)["peak"] <= 1024 * MIB


def test_children_of_an_elastic_lease_raise_it_as_a_whole(place: Sandbox) -> None:
    program = ["children.py", "lives", "100 100 go", "150 go"]
    client = place.start("run", "-q", "--memory", "64MiB..2GiB", *program)
    wait_for(lambda: here(place, "0-go", "1-go"), "all have what they need")
    (row,) = place.status()["leases"]
    assert 350 * MIB <= sum(limits(place).values()) * MIB <= row["lease"] <= 2 << 30
    place.write("go", "")
    out, _ = client.communicate()
    assert (client.returncode, sorted(out.splitlines())) == (0, ["0 200", "1 150"])


def test_a_sibling_that_ends_in_time_saves_an_allocation_that_waits(place: Sandbox) -> None:
    client = place.start(
        "run", "--memory", "512MiB", "children.py", "lives", "200 go", "20 begin 300 done"
    )
    wait_for(lambda: here(place, "0-go", "1-begin"), "both have begun")
    place.write("begin", "")
    assert client.stderr is not None
    said = client.stderr.readline()
    while "its processes hold" not in said:
        assert said, "it has not waited"
        said = client.stderr.readline()
    assert "needs more than its lease of 512 MiB" in said
    assert sum(limits(place).values()) <= 512
    place.write("go", "")
    place.write("done", "")
    out, _ = client.communicate()
    assert (client.returncode, sorted(out.splitlines())) == (0, ["0 200", "1 320"])


def test_a_child_for_which_nothing_is_left_hears_who_has_it(place: Sandbox) -> None:
    client = place.start(
        "run", "--memory", "256MiB", "children.py", "dies", "100 go", "20 begin 150"
    )
    wait_for(lambda: here(place, "0-go", "1-begin"), "both have begun")
    found = limits(place)
    place.write("begin", "")
    wait_for(lambda: len(limits(place)) == 1, "the second was refused")
    (first,) = limits(place)
    place.write("go", "")
    out, err = client.communicate()
    assert first in found
    assert client.returncode == 1
    assert "0 100" in out
    assert "the program needed more memory than its lease" in err
    assert f"process {first}: " in err
    assert "of the same program and lease" in err.replace("\n         ", " ")


def test_too_many_children_wait_and_are_told_and_never_have_more_than_the_lease(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    sandbox.write("children.py", CHILDREN)
    program = ["children.py", "lives", *["3 go"] * 12]
    client = sandbox.start("run", "-q", "--memory", "32MiB", *program)
    refused = 0

    def settled() -> bool:
        return len(list(sandbox.work.glob("*-go"))) + refused >= 12

    assert client.stdout is not None
    (directory,) = wait_for(lambda: list(sandbox.home.glob("runs/1.1")), "it was started")
    while not settled():
        assert sum(one.limit for one in shares.read(str(directory))) <= 32 * MIB
        began = len(list(sandbox.work.glob("*-go")))
        if began + refused < 12 and began >= 2:
            line = client.stdout.readline()
            assert "refused" in line
            assert "no part of this lease of 32 MiB is left" in line or "OOM" in line
            refused += 1
    sandbox.write("go", "")
    out, _ = client.communicate()
    assert refused > 0
    assert len(out.splitlines()) + refused == 12


def test_children_grow_through_the_deaths_of_their_brokers_and_of_each_other(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    sandbox.write("children.py", CHILDREN)
    words = "20 a 60 b 60 c"
    client = sandbox.start("run", "-q", "--memory", "600MiB", "children.py", "lives", *[words] * 3)
    (directory,) = wait_for(lambda: list(sandbox.home.glob("runs/1.1")), "it was started")

    def together() -> int:
        return sum(one.limit for one in shares.read(str(directory)))

    wait_for(lambda: here(sandbox, "0-a", "1-a", "2-a"), "all have begun")
    os.kill(sandbox.status()["pid"], signal.SIGKILL)
    sandbox.write("a", "")
    sandbox.status()
    wait_for(lambda: here(sandbox, "0-b", "1-b", "2-b"), "they have grown under the next broker")
    assert together() <= 600 * MIB
    victim = min(limits(sandbox))
    os.kill(victim, signal.SIGKILL)
    os.kill(sandbox.status()["pid"], signal.SIGKILL)
    sandbox.write("b", "")
    sandbox.status()
    wait_for(lambda: len(list(Path(sandbox.work).glob("*-c"))) == 2, "the others have grown")
    assert victim not in limits(sandbox)
    assert together() <= 600 * MIB
    sandbox.write("c", "")
    out, _ = client.communicate()
    assert client.returncode == signal.SIGKILL
    assert [line.split()[1] for line in out.splitlines()] == ["140", "140"]


LATE = """
import multiprocessing
import tensorflow as tf

def child():
    print("child", len(tf.ones([100 << 18])) >> 18, flush=True)

if __name__ == "__main__":
    kept = tf.ones([60 << 18])
    one = multiprocessing.get_context("spawn").Process(target=child)
    one.start()
    one.join()
"""


def test_a_child_finds_room_after_its_parent_has_taken_all_of_an_elastic_lease(
    sandbox: Sandbox,
) -> None:
    sandbox.write("late.py", LATE)
    ran = sandbox.sublet("run", "-q", "--memory", "64MiB..1GiB", "late.py", check=True)
    assert ran.stdout == "child 100\n"
