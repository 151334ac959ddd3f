"""Calls in workers of their own: the contract of an Executor, with real workers."""

import asyncio
import concurrent.futures
import functools
import json
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import sublet
from sublet.formats import pickle_transport
from support import functions
from support.nodes import Nodes
from support.sandbox import PATIENCE, Sandbox, wait_for

NewPool = Callable[..., sublet.Pool]


@pytest.mark.every_python
def test_each_call_has_a_process_of_its_own(new_pool: NewPool) -> None:
    """So the memory of each really returns."""
    with new_pool(2, memory="64MiB") as pool:
        pids = list(pool.map(functions.pid, range(6)))
    assert len(set(pids)) == 6
    assert os.getpid() not in pids


def test_results_come_in_the_order_of_the_arguments(new_pool: NewPool) -> None:
    with new_pool(2, memory="64MiB") as pool:
        assert list(pool.map(functions.double, range(7))) == [0, 2, 4, 6, 8, 10, 12]
        assert list(pool.map(functions.add, "ab", "cd")) == ["ac", "bd"]
        assert list(pool.map(functions.double, range(7), chunksize=3)) == list(range(0, 14, 2))
        assert list(pool.map(functions.double, [])) == []


def test_a_lambda_a_closure_and_a_partial_can_be_called(new_pool: NewPool) -> None:
    offset = 10
    with new_pool(1, memory="64MiB", reuse=True) as pool:
        assert pool.submit(lambda x: x + offset, 1).result() == 11
        assert pool.submit(functools.partial(functions.add, 1), 2).result() == 3
        assert pool.submit(functions.add, other=2, one=1).result() == 3


def test_a_lease_is_held_by_each_call(new_pool: NewPool) -> None:
    """The pool's, or one of the call's own."""
    with new_pool(2, memory="64MiB") as pool:
        usual = pool.submit(functions.lease)
        larger = pool.submit(functions.lease, memory="128MiB")
        assert usual.result()["ceiling"] == 64 << 20
        assert larger.result()["ceiling"] == 128 << 20


def test_what_a_function_writes_into_the_channel_costs_its_own_call_only(new_pool: NewPool) -> None:
    """Also one that looks like an answer, to a call that there is not."""
    for data in (
        b"x",
        struct.pack("<BQII", pickle_transport.RESULT, 99, 0, 0),
        bytes(17),
        bytes(1 << 16),
    ):
        with new_pool(1, memory="64MiB") as pool:
            wrong, right = pool.submit(functions.write_to_channel, data), pool.submit(functions.pid)
            with pytest.raises(sublet.CallFailed, match="descriptor 3"):
                wrong.result()
            assert right.result()


@pytest.mark.every_python
def test_an_error_comes_with_the_traceback_of_its_worker(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB") as pool:
        with pytest.raises(ValueError, match="too bad") as raised:
            pool.submit(functions.fail, "too bad").result()
        cause = str(raised.value.__cause__)
        assert "functions.py" in cause
        assert "in fail" in cause
        assert "calls.py" not in cause
        assert pool.submit(functions.double, 2).result() == 4


def test_an_error_that_cannot_be_made_again_is_reported_in_words(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB") as pool:
        future = pool.submit(functions.fail_oddly)
    with pytest.raises(sublet.RemoteError, match="Odd: this and that") as raised:
        future.result()
    assert "in fail_oddly" in str(raised.value.__cause__)


def test_what_cannot_be_pickled_fails_its_own_call_only(new_pool: NewPool) -> None:
    """An argument, and a result."""
    with new_pool(1, memory="64MiB") as pool:
        argument = pool.submit(functions.same, threading.Lock())
        result = pool.submit(threading.Lock)
        good = pool.submit(functions.double, 1)
        with pytest.raises(TypeError) as raised:
            argument.result()
        assert "cannot be sent to a worker" in "".join(raised.value.__notes__)
        with pytest.raises(TypeError) as raised:
            result.result()
        assert "cannot be sent back" in "".join(raised.value.__notes__)
        assert good.result() == 2


def test_a_function_the_worker_cannot_import_says_what_to_do(home: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("def function(): return 1\n")
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("elsewhere", tmp_path / "elsewhere.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["elsewhere"] = module
    spec.loader.exec_module(module)
    os.chdir("/")
    try:
        with sublet.Pool(1, memory="64MiB") as pool:
            future = pool.submit(module.function)
    finally:
        del sys.modules["elsewhere"]
    with pytest.raises(ModuleNotFoundError) as raised:
        future.result()
    assert "on sys.path" in "".join(raised.value.__notes__)


def test_arrays_and_tensors_come_back_as_they_were(new_pool: NewPool) -> None:
    array = np.random.default_rng(1).random((500, 400))
    with new_pool(1, memory="64MiB") as pool:
        assert pool.submit(functions.total, array).result() == float(array.sum())
        back = pool.submit(functions.same, {"a": array, "b": [array[:2]]}).result()
    np.testing.assert_array_equal(back["a"], array)
    np.testing.assert_array_equal(back["b"][0], array[:2])


def test_a_result_larger_than_the_lease_comes_back(new_pool: NewPool) -> None:
    """The lease is TensorFlow's; what NumPy holds is not its memory."""
    with new_pool(1, memory="16MiB") as pool:
        result = pool.submit(np.ones, 8 << 20).result()
    assert result.nbytes == 64 << 20
    assert result.sum() == 8 << 20


@pytest.mark.every_python
def test_reused_workers_take_call_after_call(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB", reuse=True) as pool:
        assert len(set(pool.map(functions.pid, range(20)))) == 1
    with new_pool(1, memory="64MiB", reuse=3) as pool:
        pids = list(pool.map(functions.pid, range(6)))
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert len(set(pids)) == 2


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_reused_worker_that_has_gained_memory_is_replaced(
    home: Sandbox, isolation: Literal["process", "thread"]
) -> None:
    def hoard() -> int:
        import builtins

        kept = vars(builtins).setdefault("kept_by_this_test", [])
        kept.append(bytearray(os.urandom(1 << 20)) * 400)
        return os.getpid()

    with sublet.Pool(1, memory="64MiB", reuse=True, isolation=isolation) as pool:
        first = pool.submit(functions.pid).result()
        assert pool.submit(hoard).result() == first
        assert pool.submit(functions.pid).result() != first


def test_the_initializer_runs_before_the_first_call_of_each_worker(new_pool: NewPool) -> None:
    def begin(value: str) -> None:
        os.environ["BEGUN"] = os.environ.get("BEGUN", "") + value

    with new_pool(1, memory="64MiB", reuse=2, initializer=begin, initargs=("x",)) as pool:
        assert list(pool.map(os.getenv, ["BEGUN"] * 4)) == ["x"] * 4


def test_an_initializer_that_fails_fails_the_calls(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB", initializer=functions.fail, initargs=("no",)) as pool:
        future = pool.submit(functions.double, 1)
    with pytest.raises(ValueError, match="no") as raised:
        future.result()
    assert "initializer" in "".join(raised.value.__notes__)


def test_a_call_that_waits_can_be_cancelled(new_pool: NewPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with new_pool(1, memory="64MiB") as pool:
        first = pool.submit(functions.wait_for_file, str(gate))
        second = pool.submit(functions.double, 1)
        wait_for(first.running, "the first call runs")
        assert second.cancel()
        assert not first.cancel()
        gate.touch()
        assert first.result() == str(gate)
        both: list[Future[Any]] = [first, second]
        assert concurrent.futures.wait(both).done == set(both)


def test_shutdown_can_cancel_what_has_not_begun(new_pool: NewPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = new_pool(1, memory="64MiB")
    first = pool.submit(functions.wait_for_file, str(gate))
    others = [pool.submit(functions.double, number) for number in range(3)]
    wait_for(first.running, "the first call runs")
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(other.cancelled() for other in others)
    gate.touch()
    pool.shutdown()
    assert first.result() == str(gate)


def test_a_call_that_waits_for_a_lease_can_be_cancelled(home: Sandbox, tmp_path: Path) -> None:
    """By its future, or with the pool; nobody waits for the lease any more then."""
    gate = tmp_path / "gate"
    most = int(sublet.status().devices[0].free * 0.6)
    with sublet.Pool(1, memory=most) as holder:
        holds = holder.submit(functions.wait_for_file, str(gate))
        pool = sublet.Pool(1, memory=most)
        try:
            wait_for(holds.running, "most of the device is held")
            first = pool.submit(functions.double, 1)
            assert "free" in wait_for(pool.reason, "it is said why the call waits")
            assert "double" in _waiting()
            assert first.cancel()
            wait_for(lambda: "double" not in _waiting(), "it waits for no lease any more")
            second = pool.submit(functions.double, 2)
            wait_for(pool.reason, "the second call waits")
        finally:
            pool.shutdown(cancel_futures=True)
            gate.touch()
        assert second.cancelled()


def test_a_pool_that_nobody_has_holds_no_lease(new_pool: NewPool) -> None:
    pool = new_pool(1, memory="64MiB", reuse=True)
    worker = pool.submit(functions.pid).result()
    wait_for(
        lambda: "sublet-pool-0" not in map(_name, threading.enumerate()), "its thread has ended"
    )
    del pool
    wait_for(lambda: not _lives(worker), "the idle worker has ended")


def test_a_pool_takes_nothing_after_its_end(home: Sandbox) -> None:
    with sublet.Pool(1, memory="64MiB") as pool:
        pass
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(functions.double, 1)


def test_what_was_submitted_is_done_before_the_block_ends(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB", reuse=True) as pool:
        futures = [pool.submit(functions.double, number) for number in range(50)]
    assert [future.result(timeout=0) for future in futures] == [2 * n for n in range(50)]


def test_map_gives_up_after_its_timeout(new_pool: NewPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with new_pool(1, memory="64MiB") as pool:
        results = pool.map(functions.wait_for_file, [str(gate)], timeout=0.05)
        with pytest.raises(TimeoutError):
            next(results)
        gate.touch()


def test_a_thousand_calls_wait_their_turn(home: Sandbox) -> None:
    with sublet.Pool(2, memory="64MiB", reuse=True) as pool:
        assert sum(pool.map(functions.double, range(1000))) == 999_000


def test_calls_may_come_from_many_threads(new_pool: NewPool) -> None:
    with (
        new_pool(2, memory="64MiB", reuse=True) as pool,
        concurrent.futures.ThreadPoolExecutor(8) as threads,
    ):
        asked = [
            threads.submit(lambda n: pool.submit(functions.double, n).result(), n)
            for n in range(64)
        ]
        assert [one.result() for one in asked] == [2 * n for n in range(64)]


def test_an_event_loop_can_call(new_pool: NewPool) -> None:
    async def work() -> list[Any]:
        async with new_pool(2, memory="64MiB") as pool:
            loop = asyncio.get_running_loop()
            return [
                await pool.call_async(functions.double, 4),
                await loop.run_in_executor(pool, functions.double, 5),
                [result async for result in pool.map_async(functions.double, range(3))],
            ]

    assert asyncio.run(work()) == [8, 10, [0, 2, 4]]


def test_trainings_in_workers_give_what_they_give_alone(new_pool: NewPool) -> None:
    with new_pool(2, memory="256MiB") as pool:
        once = list(pool.map(functions.train, [1, 2, 1]))
    assert once[0] == once[2] != once[1]


def test_out_of_memory_is_reported_with_a_size_worth_trying(either_home: Sandbox) -> None:
    with sublet.Pool(1, memory="32MiB") as pool:
        with pytest.raises(sublet.LeaseExceeded, match="make_tensor") as raised:
            pool.submit(functions.make_tensor, 64).result()
        assert raised.value.suggest is not None
        assert raised.value.suggest > 64 << 20
        assert "OOM" in str(raised.value.__cause__)
        assert pool.submit(functions.make_tensor, 1, memory=raised.value.suggest).result() == 2**18


def test_a_call_is_tried_again_with_more_memory_when_asked(either_home: Sandbox) -> None:
    """Side by side, as TensorFlow waits for ten seconds before it says that there is no memory."""
    with (
        sublet.Pool(1, memory="32MiB", on_oom="grow") as clean,
        sublet.Pool(1, memory="32MiB", on_oom="grow", reuse=True) as reused,
    ):
        pools = (clean, reused)
        assert [pool.submit(functions.double, 1).result() for pool in pools] == [2, 2]
        large = [pool.submit(functions.make_tensor, 64) for pool in pools]
        assert [future.result() for future in large] == [64 * 2**18] * 2
        assert [pool.submit(functions.double, 2).result() for pool in pools] == [4, 4]


@pytest.mark.parametrize("reuse", [False, True])
def test_a_function_may_end_in_any_way(new_pool: NewPool, tmp_path: Path, reuse: bool) -> None:
    """It fails its own call, with the reason; the pool goes on."""
    with new_pool(1, memory="64MiB", reuse=reuse) as pool:
        killed = pool.submit(functions.kill_itself)
        crashed = pool.submit(functions.crash)
        gone = pool.submit(functions.exit_hard, 7)
        left = pool.submit(functions.exit_softly, 3)
        threads = pool.submit(functions.leave_a_thread)
        good = pool.submit(functions.double, 4)
        with pytest.raises(sublet.WorkerDied, match="signal 9") as raised:
            killed.result()
        assert raised.value.code == 137
        with pytest.raises(sublet.WorkerDied, match="signal 11"):
            crashed.result()
        with pytest.raises(sublet.WorkerDied, match="exit code 7"):
            gone.result()
        with pytest.raises(sublet.CallFailed, match=r"sys\.exit\(3\)"):
            left.result()
        assert threads.result() == "done"
        assert good.result() == 8


def test_a_function_that_forks_answers_once(new_pool: NewPool, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with new_pool(1, memory="64MiB", reuse=True) as pool:
        assert pool.submit(functions.fork, str(note)).result() == "parent"
        assert pool.submit(functions.double, 1).result() == 2
        child = int(wait_for(lambda: note.exists() and note.read_text(), "the child was there"))
        wait_for(lambda: not _lives(child), "the child ends")


def test_no_process_outlives_the_pool(new_pool: NewPool, tmp_path: Path) -> None:
    """Not even one that the function has left behind."""
    note = tmp_path / "note"
    with new_pool(1, memory="64MiB") as pool:
        assert pool.submit(functions.leave_a_child, str(note)).result() == "done"
    assert not _lives(int(note.read_text()))


def test_what_can_never_be_granted_fails_its_call(new_pool: NewPool) -> None:
    with new_pool(1, memory="64MiB") as pool:
        with pytest.raises(sublet.SubletError, match="GiB"):
            pool.submit(functions.double, 1, memory="900GiB").result()
        assert pool.submit(functions.double, 1).result() == 2


def test_bad_terms_are_refused_at_once(home: Sandbox) -> None:
    for wrong in (
        {"memory": "lots"},
        {"isolation": "planet"},
        {"max_workers": 0},
        {"on_oom": "weep"},
        {"reuse": -1},
        {"gpu": 0, "device": "cpu"},
    ):
        with pytest.raises(sublet.SubletError):
            sublet.Pool(**wrong)
    with sublet.Pool(1, memory="64MiB") as pool:
        with pytest.raises(sublet.SubletError):
            pool.submit("no function")  # type: ignore[arg-type]
        with pytest.raises(sublet.SubletError):
            pool.submit(functions.double, 1, memory="lots")


def test_terminate_ends_what_runs(new_pool: NewPool, tmp_path: Path) -> None:
    with new_pool(2, memory="64MiB") as pool:
        running = pool.submit(functions.note_and_wait, str(tmp_path))
        wait_for(lambda: list(tmp_path.iterdir()), "it runs")
        pool.terminate_workers()
        with pytest.raises(sublet.WorkerDied):
            running.result()
    pid = int(next(tmp_path.iterdir()).name)
    wait_for(lambda: not _lives(pid), "the worker is gone")


def test_large_arrays_go_and_come_through_the_object_store(nodes: Nodes) -> None:
    """What comes back lies in it, and can only be read, as with Ray's own tasks."""
    array = np.random.default_rng(1).random(4 << 20)
    with sublet.Pool(1, memory="64MiB", on="ray") as pool:
        back = pool.submit(functions.same, array).result()
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


def test_calls_run_on_every_node_with_a_lease_of_its_broker(nodes: Nodes, tmp_path: Path) -> None:
    """Three of a GiB each on two nodes of two: no node holds more than it has."""
    with sublet.Pool(4, memory="1000MiB", on="ray") as pool:
        running = [pool.submit(functions.meet, str(tmp_path), 3) for _ in range(3)]
        homes = [future.result() for future in running]
    assert sorted(homes.count(home) for home in set(homes)) == [1, 2]


def test_a_call_that_had_begun_dies_with_its_node_and_others_go_elsewhere(
    nodes: Nodes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    doomed = nodes.add(memory=12 << 30, leased=6 << 30)
    with sublet.Pool(2, memory="4GiB", on="ray", cold=True) as pool:
        begun = pool.submit(functions.wait_for_file, str(gate))
        wait_for(begun.running, "the first call runs")
        waits = pool.submit(functions.home)
        wait_for(lambda: "free" in pool.reason(), "the second waits for its lease on that node")
        other = nodes.add(memory=6 << 30)
        nodes.remove(doomed)
        with pytest.raises(sublet.WorkerDied, match="had begun"):
            begun.result()
        assert waits.result() == str(nodes.home(other))
    nodes.remove(other)


SWEEP = """
import json, sys
import keras, numpy as np, sublet
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
def build(rate):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model
space = {"rate": [0.01, 0.02, 0.03, 0.05]}
found = {}
for on in ("local", "ray"):
    for way in ("fused", "packed"):
        ran = sublet.sweep(build, space, (x, x[:, :1]), way=way, on=on, epochs=2, progress=False)
        assert ran.best.model.predict(x[:1], verbose=0).shape == (1, 1)
        found[f"{on}, {way}"] = [trial.history["loss"] for trial in ran.trials]
        found[f"{on}, {way}, said"] = list(ran.ways)
print(json.dumps(found))
"""


def test_a_sweep_on_nodes_gives_what_it_gives_on_one_machine(
    nodes: Nodes, sandbox: Sandbox
) -> None:
    """Trials that are trained as one are a stack on each node."""
    sandbox.environ["RAY_ADDRESS"] = nodes.address
    ran = sandbox.python(sandbox.write("program.py", SWEEP), timeout=2 * PATIENCE)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "on the nodes" in found["ray, fused, said"][0]
    for way in ("fused", "packed"):
        np.testing.assert_allclose(found[f"ray, {way}"], found[f"local, {way}"], rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "mars"}, "local, ray"),
        ({"on": "ray", "gpu": 0, "memory": "25%"}, "Ray chooses the GPU"),
        ({"on": "ray", "gpu": "any", "memory": "1GiB"}, 'memory="25%"'),
        ({"on": "ray", "gpu": "any", "memory": "25%"}, "No node of the Ray cluster has"),
        ({"on": "ray", "memory": "900GiB"}, "2.0 GiB"),
    ],
)
def test_what_a_cluster_cannot_give_is_answered(
    nodes: Nodes, options: dict[str, Any], said: str
) -> None:
    def call() -> None:
        with sublet.Pool(1, **options) as pool:
            pool.submit(functions.double, 1).result()

    with pytest.raises(sublet.BadRequest, match=said):
        call()


@pytest.mark.parametrize(
    ("before", "on", "said"),
    [
        ("import sys; sys.modules['ray'] = None; ", "ray", "pip install 'sublet[ray]'"),
        ("", "ray://127.0.0.1:9", "cannot be reached"),
    ],
)
def test_without_ray_or_its_cluster_it_says_what_to_do(
    sandbox: Sandbox, before: str, on: str, said: str
) -> None:
    ran = sandbox.python("-c", f"{before}import sublet; sublet.Pool(on={on!r})")
    assert ran.returncode == 1
    assert said in ran.stderr


def _waiting() -> set[str]:
    return {row.name for row in sublet.status().waiting}


def _name(thread: threading.Thread) -> str:
    return thread.name


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
