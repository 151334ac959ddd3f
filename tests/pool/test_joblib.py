"""joblib's parallel calls in leased workers, through joblib itself."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import sublet
import sublet.joblib
from support import chores
from support.sandbox import Sandbox, wait_for


@pytest.fixture
def config(home: Sandbox) -> Iterator[None]:
    """The backend chosen as a program would."""
    with joblib.parallel_config("sublet", memory="64MiB"):
        yield


def squares(count: int) -> Iterator[Any]:
    return (joblib.delayed(chores.square)(n) for n in range(count))


@pytest.mark.usefixtures("config")
def test_results_come_in_the_order_of_the_calls() -> None:
    assert joblib.Parallel(n_jobs=2)(squares(50)) == [n * n for n in range(50)]
    assert joblib.Parallel(n_jobs=2, batch_size=7)(squares(20)) == [n * n for n in range(20)]
    assert joblib.Parallel(n_jobs=2)([]) == []
    assert list(joblib.Parallel(n_jobs=2, return_as="generator")(squares(5))) == [0, 1, 4, 9, 16]
    unordered = joblib.Parallel(n_jobs=2, return_as="generator_unordered")(squares(5))
    assert sorted(unordered) == [0, 1, 4, 9, 16]


@pytest.mark.usefixtures("config")
def test_calls_run_in_leased_workers_that_are_kept() -> None:
    def lease() -> tuple[int, Any]:
        from sublet.inside.current_lease import current

        held = current()
        return os.getpid(), held and held.ceiling

    with joblib.Parallel(n_jobs=2, batch_size=1) as parallel:
        seen = parallel(joblib.delayed(lease)() for _ in range(6))
        seen += parallel(joblib.delayed(lease)() for _ in range(6))
    pids, ceilings = zip(*seen, strict=True)
    assert 1 <= len(set(pids)) <= 2
    assert os.getpid() not in pids
    assert set(ceilings) == {64 << 20}


def test_each_call_has_a_clean_worker_if_asked(home: Sandbox) -> None:
    """Also if joblib would rather send several at once. Options may be given to `Parallel`."""
    parallel = joblib.Parallel(n_jobs=2, backend="sublet", memory="64MiB", reuse=False)
    pids = parallel(joblib.delayed(chores.pid)() for _ in range(12))
    assert len(set(pids)) == 12


@pytest.mark.usefixtures("config")
def test_a_call_may_begin_before_another_has_ended() -> None:
    """Under one configuration; neither ends the workers of the other."""
    first = joblib.Parallel(n_jobs=2, return_as="generator")(squares(20))
    assert next(first) == 0
    assert joblib.Parallel(n_jobs=2)(squares(5)) == [0, 1, 4, 9, 16]
    assert list(first) == [n * n for n in range(1, 20)]


@pytest.mark.usefixtures("config")
def test_arrays_go_and_come() -> None:
    arrays = [np.full(200_000, n, "float64") for n in range(4)]
    doubled = joblib.Parallel(n_jobs=2)(joblib.delayed(lambda a: a * 2)(a) for a in arrays)
    for before, after in zip(arrays, doubled, strict=True):
        np.testing.assert_array_equal(after, before * 2)


@pytest.mark.usefixtures("config")
def test_an_error_ends_the_call_and_leaves_no_worker(home: Sandbox) -> None:
    with joblib.Parallel(n_jobs=2, batch_size=1) as parallel:
        with pytest.raises(ValueError, match="2 is even") as raised:
            parallel(joblib.delayed(chores.refuse)(n) for n in [1, 2, 3, 5])
        assert "in refuse" in str(raised.value.__cause__)
        assert parallel(squares(3)) == [0, 1, 4], "it can be used again"
    wait_for(lambda: not home.status()["leases"], "no worker is left")


@pytest.mark.usefixtures("config")
def test_a_call_that_takes_too_long_is_ended(home: Sandbox, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    with pytest.raises(multiprocessing.TimeoutError):
        joblib.Parallel(n_jobs=2, timeout=0.1)(
            joblib.delayed(chores.wait_for_file)(never) for _ in range(2)
        )
    wait_for(lambda: not home.status()["leases"], "no worker is left")


@pytest.mark.usefixtures("config")
def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(sublet.WorkerDied, match=r"die\(\) ended with exit code 7"):
        joblib.Parallel(n_jobs=2)(joblib.delayed(chores.die)() for _ in range(2))


@pytest.mark.usefixtures("config")
def test_parallel_calls_inside_of_a_call_run_one_after_another() -> None:
    """In the worker itself, whichever way they choose a backend."""

    def outer(number: int) -> tuple[set[int], int]:
        import sublet.joblib  # noqa: F401

        inner = joblib.Parallel(n_jobs=2)(joblib.delayed(os.getpid)() for _ in range(3))
        chosen = joblib.Parallel(n_jobs=2, backend="sublet")(
            joblib.delayed(os.getpid)() for _ in range(3)
        )
        return {*inner, *chosen}, os.getpid()

    for inner, own in joblib.Parallel(n_jobs=2)(joblib.delayed(outer)(n) for n in range(2)):
        assert inner == {own}


@pytest.mark.usefixtures("config")
def test_one_job_is_done_right_here() -> None:
    """As joblib promises of n_jobs=1."""
    assert joblib.Parallel(n_jobs=1)([joblib.delayed(os.getpid)()]) == [os.getpid()]


def test_workers_are_counted_as_joblib_counts_them() -> None:
    backend = sublet.joblib.SubletBackend()
    cpus = joblib.cpu_count()
    assert backend.effective_n_jobs(-1) == cpus
    assert backend.effective_n_jobs(-1000) == 1
    assert backend.effective_n_jobs(3) == 3
    assert backend.effective_n_jobs(None) == 1
    with pytest.raises(ValueError, match="no meaning"):
        backend.effective_n_jobs(0)


def test_a_bad_option_is_refused(home: Sandbox) -> None:
    with pytest.raises(sublet.SubletError, match="lots"):
        joblib.Parallel(n_jobs=2, backend="sublet", memory="lots")(squares(2))
