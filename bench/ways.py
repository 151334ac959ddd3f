"""The ways to run many TensorFlow programs: what people do today, the limits, and ours.

Each way is opened for a number of programs at a time and gives a function that runs programs to
their end. What comes before that function is the way's own start-up: importing TensorFlow into
workers that are reused, starting Ray, warming the nursery.
"""

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench import processes
from bench.sandbox import PROGRAMS, SUBLET

RunAll = Callable[[str, Sequence[str]], None]
"""Run a program of `bench.programs` once for each stamp, so many at a time; raise if one fails."""

_LONGEST = 600.0


@dataclass(frozen=True)
class Way:
    """One way, and the package that it needs."""

    key: str
    title: str
    kind: Literal["fresh", "reused", "limit", "ours", "ours reused"]
    open: Callable[[int], AbstractContextManager[RunAll]]
    package: str = ""

    @property
    def installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None

    @property
    def isolated(self) -> bool:
        """Whether each program has a process of its own."""
        return self.kind not in ("reused", "ours reused")


def perform(program: str, stamp: str) -> None:
    """Run a program in this process."""
    importlib.import_module(f"bench.programs.{program}").main(stamp)


def _meet(directory: str, number: int, width: int) -> None:
    """Warm this worker, and wait for the others: so that each of them has done it."""
    importlib.import_module("bench.programs.short_job")
    perform("first_op", os.path.join(directory, f"stamp-{number}"))
    Path(directory, f"here-{number}").touch()
    deadline = time.monotonic() + _LONGEST
    while len(list(Path(directory).glob("here-*"))) < width:
        if time.monotonic() > deadline:
            raise TimeoutError("the other workers did not start")
        time.sleep(0.005)


@contextlib.contextmanager
def _by_command(width: int, head: Sequence[str | Path]) -> Iterator[RunAll]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def one(program: str, stamp: str) -> None:
        words = [*head, PROGRAMS / f"{program}.py", stamp]
        child = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL)
        code = processes.finish(child, _LONGEST)
        if code != 0:
            raise RuntimeError(f"{program}: exit code {code}")

    with ThreadPoolExecutor(width) as slots:
        yield lambda program, stamps: _drain(slots.map(lambda stamp: one(program, stamp), stamps))


def _plain(width: int) -> AbstractContextManager[RunAll]:
    return _by_command(width, [sys.executable])


@contextlib.contextmanager
def _sublet_command(width: int) -> Iterator[RunAll]:
    with _by_command(width, [SUBLET, "run"]) as run_all, tempfile.TemporaryDirectory() as scratch:
        run_all("first_op", [os.path.join(scratch, "warm-up")])
        yield run_all


@contextlib.contextmanager
def _sublet_call(width: int) -> Iterator[RunAll]:
    import sublet

    os.environ.pop("PYTHONPATH", None)  # It was for this process, not for the programs.

    def one(program: str, stamp: str) -> None:
        ended = sublet.run([str(PROGRAMS / f"{program}.py"), stamp])
        if ended.code != 0 or ended.how != "warm":
            raise RuntimeError(f"{program}: exit code {ended.code}, started {ended.how}")

    with ThreadPoolExecutor(width) as slots, tempfile.TemporaryDirectory() as scratch:
        one("first_op", os.path.join(scratch, "warm-up"))
        yield lambda program, stamps: _drain(slots.map(lambda stamp: one(program, stamp), stamps))


@contextlib.contextmanager
def _sublet_pool(width: int, reuse: bool) -> Iterator[RunAll]:
    import sublet

    with sublet.Pool(width, memory="256MiB", reuse=reuse) as pool:
        with tempfile.TemporaryDirectory() as place:
            if reuse:
                _drain(pool.map(_meet, [place] * width, range(width), [width] * width))
            else:
                pool.submit(perform, "first_op", os.path.join(place, "stamp")).result()

        def run_all(program: str, stamps: Sequence[str]) -> None:
            _drain(pool.map(perform, [program] * len(stamps), stamps))

        yield run_all


@contextlib.contextmanager
def _executor(width: int) -> Iterator[RunAll]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(width, context, max_tasks_per_child=1) as pool:

        def run_all(program: str, stamps: Sequence[str]) -> None:
            _drain(pool.map(perform, [program] * len(stamps), stamps))

        yield run_all


@contextlib.contextmanager
def _spawn(width: int, fresh: bool) -> Iterator[RunAll]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(width, maxtasksperchild=1 if fresh else None) as pool:
        if not fresh:
            with tempfile.TemporaryDirectory() as place:
                pool.starmap(_meet, [(place, n, width) for n in range(width)], chunksize=1)

        def run_all(program: str, stamps: Sequence[str]) -> None:
            pool.starmap(perform, [(program, stamp) for stamp in stamps], chunksize=1)

        yield run_all


@contextlib.contextmanager
def _loky(width: int) -> Iterator[RunAll]:
    joblib: Any = importlib.import_module("joblib")
    with joblib.Parallel(n_jobs=width, backend="loky", batch_size=1) as parallel:
        with tempfile.TemporaryDirectory() as place:
            parallel(joblib.delayed(_meet)(place, n, width) for n in range(width))

        def run_all(program: str, stamps: Sequence[str]) -> None:
            parallel(joblib.delayed(perform)(program, stamp) for stamp in stamps)

        yield run_all


@contextlib.contextmanager
def _ray(width: int, fresh: bool, leased: bool = False) -> Iterator[RunAll]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray: Any = importlib.import_module("ray")
    # A short name: Ray puts sockets deep below it, and their paths have a largest length.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as place:
        ray.init(num_cpus=width, include_dashboard=False, log_to_driver=False, _temp_dir=place)
        try:
            task = _ray_task(ray, fresh, leased)
            if not fresh:
                meet = ray.remote(_meet)
                ray.get([meet.remote(place, n, width) for n in range(width)], timeout=_LONGEST)

            def run_all(program: str, stamps: Sequence[str]) -> None:
                ray.get([task.remote(program, stamp) for stamp in stamps], timeout=_LONGEST)

            yield run_all
        finally:
            ray.shutdown()


def _ray_task(ray: Any, fresh: bool, leased: bool) -> Any:
    if leased:
        return importlib.import_module("sublet.ray").remote(memory=512 << 20)(perform)
    return ray.remote(max_calls=1 if fresh else 0)(perform)


@contextlib.contextmanager
def _fork(width: int) -> Iterator[RunAll]:
    importlib.import_module("bench.programs.short_job")
    importlib.import_module("bench.programs.first_op")

    def run_all(program: str, stamps: Sequence[str]) -> None:
        running: set[int] = set()
        for stamp in stamps:
            if len(running) == width:
                _collect(running)
            running.add(forked(partial(perform, program, stamp)))
        while running:
            _collect(running)

    yield run_all


def forked(work: Callable[[], None]) -> int:
    """The pid of a child that does `work` and ends."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextlib.contextmanager
def _forkserver(width: int) -> Iterator[RunAll]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.programs.short_job", "bench.programs.first_op"])

    def one(target: Callable[..., None], *words: str) -> None:
        child = context.Process(target=target, args=words)
        child.start()
        child.join(_LONGEST)
        if child.exitcode != 0:
            raise RuntimeError(f"exit code {child.exitcode}")

    # The server answers only after its preloading, which it skips silently when it fails.
    one(_assert_preloaded)
    with ThreadPoolExecutor(width) as slots:
        yield lambda program, stamps: _drain(
            slots.map(lambda stamp: one(perform, program, stamp), stamps)
        )


def _assert_preloaded() -> None:
    if "tensorflow" not in sys.modules:
        raise RuntimeError("the fork server did not preload TensorFlow")


def _collect(running: set[int]) -> None:
    pid, status = os.wait()
    running.discard(pid)
    if status:
        raise RuntimeError(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")


def _drain(results: Iterator[None]) -> None:
    for _ in results:
        pass


WAYS = (
    Way("plain", "python job.py", "fresh", _plain),
    Way("spawn-fresh", "mp.Pool spawn, a worker per job", "fresh", lambda n: _spawn(n, True)),
    Way("executor-fresh", "ProcessPoolExecutor spawn, a worker per job", "fresh", _executor),
    Way("ray-fresh", "Ray, max_calls=1", "fresh", lambda n: _ray(n, True), "ray"),
    Way("spawn-reused", "mp.Pool spawn, reused", "reused", lambda n: _spawn(n, False)),
    Way("loky-reused", "joblib loky, reused", "reused", _loky, "joblib"),
    Way("ray-reused", "Ray, reused", "reused", lambda n: _ray(n, False), "ray"),
    Way("fork", "limit: bare fork, preloaded", "limit", _fork),
    Way("forkserver", "limit: forkserver, preloaded", "limit", _forkserver),
    Way("sublet-command", "sublet run job.py", "ours", _sublet_command),
    Way("sublet-call", "sublet.run() from Python", "ours", _sublet_call),
    Way("ray-leased", "sublet.ray.remote", "ours", lambda n: _ray(n, True, True), "ray"),
    Way("pool", "sublet.Pool, a worker per job", "ours", lambda n: _sublet_pool(n, False)),
    Way("pool-reused", "sublet.Pool(reuse=True)", "ours reused", lambda n: _sublet_pool(n, True)),
)
BY_KEY = {way.key: way for way in WAYS}
