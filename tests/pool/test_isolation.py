"""Calls in the threads of one worker: one process, one lease, results as of each call alone."""

from typing import Any

import pytest

import sublet
from support import functions
from support.sandbox import Sandbox


def multiply(number: int) -> tuple[float, bool]:
    """A function of TensorFlow 1: its own placeholder, in whatever graph is the default one."""
    import tensorflow as tf

    v1 = tf.compat.v1
    given = v1.placeholder(tf.float32, ())
    noise = v1.random_uniform((), seed=number)
    options = v1.GPUOptions(per_process_gpu_memory_fraction=0.9)
    with v1.Session(config=v1.ConfigProto(gpu_options=options)) as session:
        value = session.run(given * number + noise, {given: 2.0})
    return float(value), v1.get_default_session() is not None


@pytest.mark.every_python
@pytest.mark.slow
def test_threads_of_one_process_give_what_processes_give(home: Sandbox) -> None:
    with sublet.Pool(2, memory="256MiB") as pool:
        alone = list(pool.map(functions.train, range(4)))
    with sublet.Pool(4, isolation="thread", memory="512MiB") as pool:
        assert len(set(pool.map(functions.pid, range(8)))) == 1
        together = list(pool.map(functions.train, [0, 1, 2, 3, 0, 1, 2, 3]))
        held = pool.submit(functions.lease).result()
    assert together == alone * 2
    assert held["ceiling"] == 512 << 20


@pytest.mark.slow
def test_sessions_give_what_they_give_one_after_another(home: Sandbox) -> None:
    with sublet.Pool(1, isolation="session", memory="256MiB") as pool:
        alone = list(pool.map(multiply, range(6)))
    with sublet.Pool(4, isolation="session", memory="256MiB") as pool:
        assert list(pool.map(multiply, [*range(6)] * 10)) == alone * 10
    assert all(has_session for _, has_session in alone)


def test_what_a_call_in_a_thread_does_ends_that_call_only(home: Sandbox) -> None:
    with sublet.Pool(2, isolation="thread", memory="64MiB") as pool:
        failed: Any = pool.submit(functions.fail, "no")
        left: Any = pool.submit(functions.exit_softly, 3)
        large: Any = pool.submit(functions.make_tensor, 256)
        with pytest.raises(ValueError, match="no"):
            failed.result()
        with pytest.raises(sublet.CallFailed, match="called sys"):
            left.result()
        with pytest.raises(sublet.LeaseExceeded, match="make_tensor"):
            large.result()
        assert pool.submit(functions.make_tensor, 1).result() == 2**18


def ones(number: int) -> float:
    import tensorflow as tf

    v1 = tf.compat.v1
    return float(v1.get_default_session().run(v1.reduce_sum(v1.ones([number, 1024, 1024]))))


def test_a_session_that_runs_out_of_memory_names_the_tensor(home: Sandbox) -> None:
    """Also where that is a constant of its graph."""
    with sublet.Pool(2, isolation="session", memory="64MiB") as pool:
        with pytest.raises(sublet.LeaseExceeded, match=r"shape\[300,1024,1024\] and type float"):
            pool.submit(ones, 300).result()
        assert pool.submit(ones, 1).result() == 2**20


def test_a_worker_of_threads_that_dies_takes_its_calls_along_and_another_follows(
    home: Sandbox,
) -> None:
    with sublet.Pool(2, isolation="thread", memory="64MiB") as pool:
        with pytest.raises(sublet.WorkerDied, match="exit code 5"):
            pool.submit(functions.exit_hard, 5).result()
        assert pool.submit(functions.double, 5).result() == 10


def test_calls_in_threads_have_no_memory_of_their_own(home: Sandbox) -> None:
    with (
        sublet.Pool(2, isolation="thread", memory="64MiB") as pool,
        pytest.raises(sublet.SubletError, match="share one lease"),
    ):
        pool.submit(functions.double, 1, memory="32MiB")
