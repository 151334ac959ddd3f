"""Programs written for `ProcessPoolExecutor` run with `sublet.Pool` in its place."""

import asyncio
import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sublet
from support import chores
from support.sandbox import Sandbox

MakePool = Callable[..., Executor]


@pytest.fixture(params=["stdlib", "sublet"])
def make_pool(request: pytest.FixtureRequest, home: Sandbox) -> Iterator[MakePool]:
    """Makes executors of either kind with the same arguments, and ends them."""
    made: list[Executor] = []

    def make(*args: Any, **options: Any) -> Executor:
        options["mp_context"] = multiprocessing.get_context("spawn")
        if request.param == "stdlib":
            made.append(ProcessPoolExecutor(*args, **options))
        else:
            options["memory"] = "64MiB"
            made.append(sublet.Pool(*args, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.shutdown()


def test_futures_can_be_waited_for_in_every_way(make_pool: MakePool) -> None:
    with make_pool(2) as pool:
        futures = {pool.submit(chores.square, n): n for n in range(6)}
        for future in concurrent.futures.as_completed(futures):
            assert future.result() == futures[future] ** 2
        done, rest = concurrent.futures.wait(
            [pool.submit(chores.refuse, 2), pool.submit(chores.refuse, 1)],
            return_when=concurrent.futures.ALL_COMPLETED,
        )
        assert not rest
        assert sorted(future.exception() is None for future in done) == [False, True]


def test_map_keeps_the_order_and_raises_the_error_in_its_place(make_pool: MakePool) -> None:
    with make_pool(2) as pool:
        assert list(pool.map(chores.square, range(7), chunksize=3)) == [n * n for n in range(7)]
        assert list(pool.map(chores.power, [2, 3], [3, 2])) == ["8", "9"]
        results = pool.map(chores.refuse, [1, 2, 3])
        assert next(results) == 1
        with pytest.raises(ValueError, match="2 is even") as raised:
            next(results)
        assert "in refuse" in str(raised.value.__cause__)
        with pytest.raises(StopIteration):
            next(results)


def test_map_gives_up_after_its_timeout(make_pool: MakePool, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with make_pool(1) as pool:
        results = pool.map(chores.wait_for_file, [str(path)], timeout=0.01)
        with pytest.raises(TimeoutError):
            next(results)
        path.touch()


def test_a_call_that_waits_can_be_cancelled(make_pool: MakePool, tmp_path: Path) -> None:
    path = tmp_path / "go"
    with make_pool(1) as pool:
        first = pool.submit(chores.wait_for_file, str(path))
        # One is prepared ahead in the standard library.
        others = [pool.submit(chores.square, n) for n in range(5)]
        assert others[-1].cancel()
        assert others[-1].cancelled()
        path.touch()
        assert first.result() == str(path)
        assert not first.cancel()
        with pytest.raises(CancelledError):
            others[-1].result()


def test_callbacks_hear_of_the_end(make_pool: MakePool) -> None:
    heard: list[Future[int]] = []
    with make_pool(1) as pool:
        future = pool.submit(chores.square, 3)
        future.add_done_callback(heard.append)
    assert heard == [future]


def test_a_shutdown_can_cancel_what_waits(home: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "go"
    pool = sublet.Pool(1, memory="64MiB")
    first = pool.submit(chores.wait_for_file, str(path))
    others = [pool.submit(chores.square, n) for n in range(5)]
    pool.shutdown(wait=False, cancel_futures=True)
    path.touch()
    pool.shutdown()
    assert others[-1].cancelled()
    assert first.cancelled() or first.result() == str(path)


def test_a_pool_that_was_shut_down_takes_no_calls(make_pool: MakePool) -> None:
    pool = make_pool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(chores.square, 2)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(chores.square, [2])


@pytest.mark.parametrize("reuse", [True, False])
def test_nothing_is_left_when_a_shutdown_returns(home: Sandbox, reuse: bool) -> None:
    with sublet.Pool(2, memory="64MiB", reuse=reuse) as pool:
        assert list(pool.map(chores.square, range(4))) == [0, 1, 4, 9]
    assert home.status()["leases"] == []


def test_an_event_loop_can_run_calls_in_it(make_pool: MakePool) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with make_pool(2) as pool:
            calls = [loop.run_in_executor(pool, chores.square, n) for n in range(4)]
            return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [0, 1, 4, 9]


def test_a_worker_takes_so_many_calls(home: Sandbox) -> None:
    """There, some versions of Python wait for ever: see CPython's issue 115634."""
    with sublet.Pool(1, memory="64MiB", max_tasks_per_child=2) as pool:
        pids = list(pool.map(chores.pid, range(4)))
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2]


def test_workers_are_set_up_by_the_initializer(make_pool: MakePool) -> None:
    with make_pool(1, initializer=chores.greet, initargs=("hello",)) as pool:
        assert pool.submit(chores.greeted, "you").result() == "hello, you"


def test_an_initializer_that_fails_fails_each_call_with_its_own_error(home: Sandbox) -> None:
    """Where a ProcessPoolExecutor says only that it is broken."""
    with sublet.Pool(1, memory="64MiB", initializer=chores.refuse_to_start) as pool:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no data here") as raised:
                pool.submit(chores.square, 2).result()
            assert any("initializer" in note for note in raised.value.__notes__)


def test_a_worker_that_dies_breaks_no_other_call(home: Sandbox) -> None:
    with sublet.Pool(1, memory="64MiB") as pool:
        dead, alive = pool.submit(chores.die), pool.submit(chores.square, 3)
        with pytest.raises(sublet.WorkerDied, match="exit code 7"):
            dead.result()
        assert alive.result() == 9


def test_a_callback_of_a_cancelled_call_may_use_the_pool(home: Sandbox, tmp_path: Path) -> None:
    """It learns that the pool is closed, and does not wait for it."""
    refused = threading.Event()
    pool = sublet.Pool(1, memory="64MiB")
    first = pool.submit(chores.wait_for_file, str(tmp_path / "go"))

    def go_on(_: Future[int]) -> None:
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(chores.square, 2)
        refused.set()

    pool.submit(chores.square, 3).add_done_callback(go_on)
    pool.shutdown(wait=False, cancel_futures=True)
    assert refused.is_set()
    (tmp_path / "go").touch()
    pool.shutdown()
    assert first.done()


@pytest.mark.parametrize(
    "options", [{"max_tasks_per_child": 0}, {"max_tasks_per_child": 2, "reuse": True}]
)
def test_how_often_a_worker_is_used_is_said_once(home: Sandbox, options: dict[str, Any]) -> None:
    with pytest.raises(sublet.SubletError, match="max_tasks_per_child"):
        sublet.Pool(2, **options)
