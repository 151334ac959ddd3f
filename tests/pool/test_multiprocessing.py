"""`multiprocessing.Pool` and the one that takes its place do the same; the latter never hangs."""

import itertools
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sublet
import sublet.multiprocessing
from support import chores
from support.sandbox import Sandbox, wait_for

MakePool = Callable[..., Any]

ENDLESS = """
import itertools
from sublet.multiprocessing import Pool

results = Pool(2, memory="64MiB").imap(abs, itertools.count(1))
print(next(results))
"""


@pytest.fixture(params=["stdlib", "sublet"])
def make_pool(request: pytest.FixtureRequest, home: Sandbox) -> Iterator[MakePool]:
    """Makes pools of either kind, and ends them."""
    made: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        if request.param == "stdlib":
            made.append(multiprocessing.get_context("spawn").Pool(*args, **options))
        else:
            made.append(sublet.multiprocessing.Pool(*args, memory="64MiB", **options))
        return made[-1]

    yield make
    for pool in made:
        pool.terminate()
        pool.join()


@pytest.fixture
def pool(home: Sandbox) -> Iterator[sublet.multiprocessing.Pool]:
    with sublet.multiprocessing.Pool(2, memory="64MiB") as made:
        yield made


def test_every_way_to_call_gives_the_same_results(make_pool: MakePool) -> None:
    pool = make_pool(2)
    squares = [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    assert pool.apply(chores.square, (3,)) == 9
    assert pool.apply(chores.power, (2,), {"exponent": 3, "memory": " bytes"}) == "8 bytes"
    assert pool.apply_async(chores.power, [2, 3]).get() == "8"
    assert pool.map(chores.square, range(10)) == squares
    assert pool.map(chores.square, (n for n in range(10)), chunksize=3) == squares
    assert pool.map(chores.square, []) == []
    assert pool.map_async(chores.square, range(10), 4).get() == squares
    assert pool.starmap(chores.power, [(2, 3), [3, 2]]) == ["8", "9"]
    assert pool.starmap_async(chores.power, [(2,)]).get() == ["4"]
    assert list(pool.imap(chores.square, range(10))) == squares
    assert list(pool.imap(chores.square, iter(range(10)), chunksize=4)) == squares
    assert sorted(pool.imap_unordered(chores.square, range(10))) == squares
    assert sorted(pool.imap_unordered(chores.square, range(10), 3)) == squares
    assert list(pool.imap(chores.square, [])) == []


def test_an_error_is_raised_where_the_result_is_asked_for(make_pool: MakePool) -> None:
    pool = make_pool(2)
    with pytest.raises(ValueError, match="4 is even") as raised:
        pool.apply(chores.refuse, (4,))
    assert "in refuse" in str(raised.value.__cause__)
    with pytest.raises(ValueError, match="2 is even"):
        pool.map(chores.refuse, [1, 2, 3], chunksize=1)
    results = pool.imap(chores.refuse, [1, 2, 3])
    assert next(results) == 1
    with pytest.raises(ValueError, match="2 is even"):
        next(results)
    assert next(results) == 3
    with pytest.raises(StopIteration):
        next(results)


def test_an_error_of_the_iterable_comes_in_its_place(make_pool: MakePool) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise KeyError("no more data")

    pool = make_pool(1)
    results = pool.imap(chores.square, numbers())
    assert next(results) == 1
    with pytest.raises(KeyError, match="no more data"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(KeyError, match="no more data"):
        pool.map(chores.square, numbers())


def test_a_callback_has_returned_before_the_result_is_ready(make_pool: MakePool) -> None:
    pool = make_pool(2)
    heard: list[Any] = []
    good = pool.apply_async(chores.square, (3,), callback=heard.append)
    assert good.get() == 9
    assert heard == [9]
    assert good.successful()
    all_good = pool.map_async(chores.square, [1, 2], callback=heard.append)
    all_good.wait()
    assert heard == [9, [1, 4]]
    bad = pool.map_async(chores.refuse, [1, 2], callback=heard.append, error_callback=heard.append)
    bad.wait()
    assert not bad.successful()
    assert isinstance(heard.pop(), ValueError)
    assert heard == [9, [1, 4]]


def test_a_result_that_is_not_ready_says_so(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(1)
    path = str(tmp_path / "go")
    result = pool.apply_async(chores.wait_for_file, (path,))
    assert not result.ready()
    result.wait(0.01)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0.01)
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    results = pool.imap(chores.wait_for_file, [path])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.01)
    Path(path).touch()
    assert result.get() == path
    assert result.ready()
    assert results.next() == path


def test_a_closed_pool_finishes_what_it_was_given(make_pool: MakePool, tmp_path: Path) -> None:
    pool = make_pool(1)
    path = str(tmp_path / "go")
    first = pool.apply_async(chores.wait_for_file, (path,))
    others = pool.imap(chores.square, range(20))
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    for method in (pool.apply, pool.apply_async):
        with pytest.raises(ValueError, match="not running"):
            method(chores.pid)
    for method in (pool.map, pool.map_async, pool.imap, pool.imap_unordered, pool.starmap):
        with pytest.raises(ValueError, match="not running"):
            method(chores.square, [1])
    with pytest.raises(ValueError, match="not running"), pool:
        pass
    Path(path).touch()
    pool.join()
    assert first.get() == path
    assert list(others) == [n * n for n in range(20)]


def test_a_worker_is_set_up_once_and_then_kept(make_pool: MakePool) -> None:
    pool = make_pool(1, chores.greet, ("hello",))
    assert pool.map(chores.greeted, ["you", "all"], chunksize=1) == ["hello, you", "hello, all"]
    assert len(set(pool.map(chores.pid, range(5), chunksize=1))) == 1


def test_a_worker_is_replaced_after_so_many_tasks(make_pool: MakePool) -> None:
    pool = make_pool(1, maxtasksperchild=2)
    pids = pool.map(chores.pid, range(6), chunksize=1)
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 2]


def test_what_a_manager_holds_can_be_used_by_workers(make_pool: MakePool) -> None:
    pool = make_pool(2)
    with multiprocessing.get_context("spawn").Manager() as manager:
        kept = manager.dict()
        pool.starmap(chores.note, [(kept, n) for n in range(4)])
        assert dict(kept) == {0: 0, 1: 1, 2: 4, 3: 9}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"processes": 0}, ValueError),
        ({"maxtasksperchild": 0}, ValueError),
        ({"maxtasksperchild": 1.5}, ValueError),
        ({"initializer": "no function"}, TypeError),
    ],
)
def test_bad_options_are_refused_alike(
    make_pool: MakePool, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make_pool(**options)


def test_a_pool_cannot_be_sent_to_a_worker(make_pool: MakePool) -> None:
    with pytest.raises(NotImplementedError):
        pickle.dumps(make_pool(1))


def test_the_end_of_a_block_ends_what_runs(home: Sandbox, tmp_path: Path) -> None:
    """Results that never came are errors, for who asks and for who listens."""
    heard: list[BaseException] = []
    with sublet.multiprocessing.Pool(1, memory="64MiB") as pool:
        runs = pool.apply_async(chores.wait_for_file, (str(tmp_path / "never"),))
        waits = pool.apply_async(chores.square, (2,), error_callback=heard.append)
        feeding = pool.imap(chores.wait_for_file, itertools.repeat(str(tmp_path / "never")))
        wait_for(lambda: home.status()["leases"], "a worker runs")
    for result in (runs, waits):
        with pytest.raises(sublet.CallFailed):
            result.get(timeout=0)
    assert [type(error) for error in heard] == [sublet.CallFailed]
    with pytest.raises(sublet.CallFailed):
        list(feeding)
    wait_for(lambda: not home.status()["leases"], "no worker is left")


def test_a_worker_that_dies_fails_its_own_call(pool: sublet.multiprocessing.Pool) -> None:
    with pytest.raises(sublet.WorkerDied, match="exit code 7"):
        pool.apply(chores.die)
    assert pool.apply(chores.square, (3,)) == 9


def test_an_endless_iterable_is_read_as_far_as_it_is_needed(
    pool: sublet.multiprocessing.Pool, tmp_path: Path
) -> None:
    """A few calls ahead of those that have ended."""
    squares = pool.imap(chores.square, itertools.count())
    assert [next(squares) for _ in range(3)] == [0, 1, 4]
    pool.terminate()
    read: list[int] = []

    def paths() -> Iterator[str]:
        for number in itertools.count():
            read.append(number)
            yield str(tmp_path / "never")

    with sublet.multiprocessing.Pool(1, memory="64MiB") as other:
        other.imap(chores.wait_for_file, paths())
        wait_for(lambda: len(read) == 5, "four calls wait, and the next one is at hand")
    wait_for(lambda: not _feeds(), "nobody reads any more")
    assert len(read) == 5


def test_a_program_ends_without_ending_its_pool(sandbox: Sandbox) -> None:
    """Although there would be something to do for ever."""
    program = sandbox.write("program.py", ENDLESS)
    ran = sandbox.python(program)
    assert (ran.stdout, ran.stderr) == ("1\n", "")
    wait_for(lambda: not sandbox.status()["leases"], "no worker is left")


def test_a_callback_may_use_the_pool(pool: sublet.multiprocessing.Pool) -> None:
    """Also one that learns of the pool's end: it is refused, and nothing waits for ever."""
    later: list[Any] = []
    done = threading.Event()

    def go_on(value: int) -> None:
        later.append(pool.apply_async(chores.square, (value,), callback=lambda _: done.set()))

    pool.apply_async(chores.square, (3,), callback=go_on)
    assert done.wait(60)
    assert later[0].get() == 81


def test_each_call_has_a_clean_worker_if_asked(home: Sandbox) -> None:
    """Whether it is said in this or that way, and however many arguments there are."""
    for options in ({"reuse": False}, {"maxtasksperchild": 1}):
        with sublet.multiprocessing.Pool(2, memory="64MiB", **options) as pool:
            assert len(set(pool.map(chores.pid, range(12)))) == 12


def test_options_of_sublet_are_checked(home: Sandbox) -> None:
    with pytest.raises(sublet.SubletError, match="lots"):
        sublet.multiprocessing.Pool(2, memory="lots")
    with pytest.raises(TypeError, match="memroy"):
        sublet.multiprocessing.Pool(2, memroy="1GiB")  # type: ignore[call-arg]


def test_all_else_is_the_standard_library() -> None:
    assert sublet.multiprocessing.cpu_count is multiprocessing.cpu_count
    assert sublet.multiprocessing.TimeoutError is multiprocessing.TimeoutError
    with pytest.raises(AttributeError):
        _ = sublet.multiprocessing.nonsense


def _feeds() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sublet-imap"]
