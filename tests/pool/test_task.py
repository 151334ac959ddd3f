"""`@sublet.task`: a function that is called in a leased worker, and stays a function."""

import asyncio
import inspect
import os
import pickle

import cloudpickle
import pytest

import sublet
from support import chores
from support.sandbox import Sandbox, wait_for

PROGRAM = """
import os, sublet

@sublet.task(memory="64MiB", max_workers=2, reuse=True)
def factorial(number):
    "Of a number."
    return number * factorial(number - 1) if number else 1

@sublet.task(memory="64MiB")
def pid():
    return os.getpid()

print(factorial(5), list(factorial.map([2, 3])), factorial.submit(4).result(), factorial.local(0))
print(pid() != os.getpid())
factorial.submit(6).add_done_callback(lambda future: print(future.result()))
"""

FORKED = """
import os, sublet

@sublet.task(memory="64MiB")
def same(number):
    return number

same(3)
if (child := os.fork()) == 0:
    print(same(1), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], same(0))
"""


def test_a_task_runs_in_a_worker(home: Sandbox) -> None:
    number, pid = chores.countdown(0)
    assert number == 0
    assert pid != os.getpid()
    assert chores.countdown.submit(5, end=5).result()[0] == 5
    assert [n for n, _ in chores.countdown.map([1, 2, 3])] == [0, 0, 0]
    assert [n for n, _ in chores.countdown.map([1, 2], [0, 2])] == [0, 2]
    assert asyncio.run(chores.countdown.call_async(7, end=7))[0] == 7
    assert chores.countdown.local(3, end=3) == (3, os.getpid())


def test_a_task_stays_a_function() -> None:
    assert chores.countdown.__name__ == "countdown"
    assert chores.countdown.__doc__ == "Count down in one worker, by calling itself."
    assert list(inspect.signature(chores.countdown).parameters) == ["number", "end"]
    assert "countdown" in repr(chores.countdown)
    assert "64MiB" in repr(chores.countdown)


def test_a_task_needs_no_options(home: Sandbox) -> None:
    assert chores.describe([1]) == "[1]"


def test_an_error_is_raised_to_the_caller(home: Sandbox) -> None:
    @sublet.task(memory="64MiB")
    def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="too bad") as raised:
        fail("too bad")
    assert "in fail" in str(raised.value.__cause__)


def test_a_task_inside_a_worker_calls_its_function(home: Sandbox) -> None:
    """Of any pool: a worker that waits for another might wait for ever."""

    def nested() -> tuple[int, set[int]]:
        pids = {chores.countdown(0)[1], chores.countdown.submit(0).result()[1]}
        pids |= {pid for _, pid in chores.countdown.map([1, 2])}
        pids.add(asyncio.run(chores.countdown.call_async(0))[1])
        return os.getpid(), pids

    with sublet.Pool(1, memory="64MiB") as pool:
        own, pids = pool.submit(nested).result()
    assert pids == {own}


def test_a_task_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(chores.countdown)) is chores.countdown
    assert cloudpickle.loads(cloudpickle.dumps(chores.countdown)) is chores.countdown
    assert len(cloudpickle.dumps(chores.countdown)) < 200


def test_a_task_of_a_main_program_works_and_leaves_nothing_behind(sandbox: Sandbox) -> None:
    """What was submitted is done before the program ends, and then no worker is left."""
    program = sandbox.write("program.py", PROGRAM)
    ran = sandbox.python(program)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["120 [2, 6] 24 1", "True", "720"]
    wait_for(lambda: not sandbox.status()["leases"], "no worker is left")


def test_a_closed_task_makes_a_new_pool(home: Sandbox) -> None:
    @sublet.task(memory="64MiB", reuse=True, max_workers=1)
    def pid() -> int:
        return os.getpid()

    first = pid()
    assert pid() == first
    pid.close()
    pid.close()
    assert pid() != first
    pid.close()
    wait_for(lambda: not home.status()["leases"], "no worker is left")


def test_a_task_in_a_fork_has_a_pool_of_its_own(sandbox: Sandbox) -> None:
    """In a program of its own: TensorFlow may run in this process, and then a fork is refused."""
    program = sandbox.write("program.py", FORKED)
    # Newer Pythons warn of forks beside threads, and the pool has some: that is the point here.
    ran = sandbox.python("-W", "ignore:This process:DeprecationWarning", program)
    assert (ran.stdout.split(), ran.stderr) == (["1", "0", "0"], "")


def test_a_wrong_option_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="memroy"):
        sublet.task(memroy="1GiB")  # type: ignore[call-overload]
    with pytest.raises(sublet.SubletError, match="cannot be a task"):
        sublet.task(3)  # type: ignore[call-overload]


def test_a_method_is_refused_with_a_way_out() -> None:
    with pytest.raises((RuntimeError, sublet.SubletError)) as raised:

        class Model:
            @sublet.task
            def train(self) -> None: ...

    error = raised.value if isinstance(raised.value, sublet.SubletError) else raised.value.__cause__
    assert "@staticmethod" in str(error)

    class Trainer:
        @staticmethod
        @sublet.task
        def train() -> int:
            return 3

    assert Trainer.train.local() == 3
