"""`sublet.Pool` beside the pools that people use today.

    python -m bench.pool HELD WAY DIRECTORY     the memory of workers that are held
    python -m bench.pool TRIPS WAY DIRECTORY    empty calls and large arguments
    python -m bench.pool FLAT WAY DIRECTORY     many trainings through one pool
    python -m bench.pool SAME WAY DIRECTORY     calls in threads, beside each alone

Each is a process of its own, so that nothing of one way is left when the next begins.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import figures, processes
from bench.driver import Drive, drive
from bench.report import Bar, Result, Table
from bench.sandbox import ROOT, Sandbox, sandbox
from bench.ways import BY_KEY, perform
from sublet.pool.pool import Isolation

_MiB = 2**20
_COUNT, _WIDTH = 24, 2
_TRAININGS = (
    "executor-fresh",
    "ray-fresh",
    "spawn-reused",
    "loky-reused",
    "ray-reused",
    "forkserver",
    "ray-leased",
    "pool",
    "pool-reused",
)
_LARGE = 100_000_000


def measure(quick: bool) -> Result:
    """All of it; what fails is told and leaves the rest as it is."""
    failures: list[str] = []
    drives = _trainings(quick, failures)
    held: dict[str, float] = {}
    trips: dict[str, dict[str, list[float]]] = {}
    for way in ("executor", "forkserver", "pool"):
        with _noted(failures, f"held workers, {way}"):
            held[way] = _apart("HELD", way, {"count": 2 if quick else 6})["bytes"]
    for turn in range(1 if quick else 3):
        for way in ("executor", "pool") if turn % 2 == 0 else ("pool", "executor"):
            with _noted(failures, f"calls, {way}"):
                sample = _apart("TRIPS", way, {"calls": 100 if quick else 1000, "large": 10})
                for name, values in sample.items():
                    trips.setdefault(way, {}).setdefault(name, []).append(values)
    flat: dict[str, list[int]] = {}
    for way in ("pool", "pool-reused"):
        with _noted(failures, f"many trainings, {way}"):
            flat[way] = _apart("FLAT", way, {"count": 40 if quick else 200})["bytes"]
    same: dict[str, list[int]] = {}
    for way in ("thread", "session"):
        with _noted(failures, f"calls beside each alone, {way}"):
            sample = _apart("SAME", way, {"rounds": 3 if quick else 50})
            same[way] = [sample["calls"], sample["unequal"]]
    return result(drives, held, trips, flat, same, tuple(failures))


def result(
    drives: Mapping[str, Sequence[Drive]],
    held: Mapping[str, float],
    trips: Mapping[str, Mapping[str, Sequence[float]]],
    flat: Mapping[str, Sequence[int]],
    same: Mapping[str, Sequence[int]],
    failures: tuple[str, ...] = (),
) -> Result:
    """Tables and bars for what was measured."""
    tables = [_training_table(drives), _held_table(held), _trip_table(trips), _flat_table(flat)]
    tables.append(_same_table(same))
    bars = [*_training_bars(drives), *_held_bars(held), *_trip_bars(trips), *_flat_bars(flat)]
    samples = {
        "trainings": {
            key: [[one.once_warm, one.from_nothing] for one in several]
            for key, several in drives.items()
        },
        "held": dict(held),
        "trips": {way: dict(by) for way, by in trips.items()},
        "flat": {way: list(values) for way, values in flat.items()},
        "same": {way: list(values) for way, values in same.items()},
    }
    for way, (_, unequal) in same.items():
        bars.append(
            Bar(f"{way} pool: calls that differ from alone", unequal, 0, "at most", "calls")
        )
    return Result("pool", tuple(tables), tuple(bars), samples, failures)


# Many short trainings.


def _trainings(quick: bool, failures: list[str]) -> dict[str, list[Drive]]:
    drives: dict[str, list[Drive]] = {}
    ways = [BY_KEY[key] for key in _TRAININGS]
    for turn in range(1 if quick else 3):
        for way in (*ways[turn:], *ways[:turn]):
            if not way.installed or (turn and way.kind == "fresh"):
                continue
            with _noted(failures, way.title):
                one = drive(way.key, "short_job", 4 if quick else _COUNT, _WIDTH)
                print(f"  {way.title}: {one.from_nothing:.1f} s", file=sys.stderr)
                drives.setdefault(way.key, []).append(one)
    return drives


def _middles(drives: Mapping[str, Sequence[Drive]], field: str) -> dict[str, float]:
    return {
        key: figures.median([getattr(one, field) for one in several])
        for key, several in drives.items()
    }


def _training_table(drives: Mapping[str, Sequence[Drive]]) -> Table:
    warm, full = _middles(drives, "once_warm"), _middles(drives, "from_nothing")
    rows = []
    for key in _TRAININGS:
        way = BY_KEY[key]
        cells = [figures.significant(times[key]) if key in times else "–" for times in (full, warm)]
        worker = "own" if way.isolated else "reused"
        rows.append((way.title, worker, str(len(drives.get(key, ()))), *cells))
    return Table(
        f"{_COUNT} short Keras trainings, two at a time, seconds",
        ("pool", "worker", "rounds", "from nothing", "once warm"),
        tuple(rows),
        (
            "from nothing: with the import of TensorFlow into reused workers, or the start of the"
            " broker and its nursery.",
        ),
    )


def _training_bars(drives: Mapping[str, Sequence[Drive]]) -> Iterator[Bar]:
    for field, when in (("from_nothing", "from nothing"), ("once_warm", "once warm")):
        times = _middles(drives, field)
        fresh = [times[key] for key in times if BY_KEY[key].kind == "fresh"]
        reused = [times[key] for key in times if BY_KEY[key].kind == "reused"]
        if "pool" in times and fresh:
            yield Bar(
                f"a worker each, best fresh one, {when}", min(fresh) / times["pool"], 3, "at least"
            )
        if {"ray-leased", "ray-fresh"} <= times.keys():
            ratio = times["ray-fresh"] / times["ray-leased"]
            yield Bar(f"sublet.ray.remote, Ray's fresh workers, {when}", ratio, 2, "at least")
        for key, name in (("pool", "a worker each"), ("pool-reused", "reused")):
            if key in times and reused:
                bar = f"{name}, best reused one, {when}"
                yield Bar(bar, min(reused) / times[key], 1, "at least")


# Memory of workers that are held.


def hold(mark: str) -> None:
    """Train, tell the parent, and hold the memory."""
    perform("short_job", f"{mark}.stamp")
    Path(mark).touch()
    signal.pause()


def _held(way: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    """All processes but the one that asks, whose memory is the user's."""
    count = options["count"]
    marks = [directory / f"held-{number}" for number in range(count)]
    pool = _open(way, count)
    futures = [pool.submit(hold, str(mark)) for mark in marks]
    processes.wait_for(
        lambda: all(mark.exists() for mark in marks) or any(one.done() for one in futures),
        f"{count} workers",
    )
    pids = {one.pid for one in processes.tree(os.getpid())} - {os.getpid()}
    if way == "pool":
        import sublet

        pids |= {one.pid for one in processes.tree(sublet.status().pid)}
    held = sum(map(processes.pss, pids))
    for future in futures:
        if future.done():
            future.result()
    _write(directory, {"bytes": held})
    os._exit(0)


def _held_table(held: Mapping[str, float]) -> Table:
    titles = {
        "executor": "ProcessPoolExecutor, spawn",
        "forkserver": "ProcessPoolExecutor, preloaded forkserver",
        "pool": "sublet.Pool, broker and nursery too",
    }
    first = held.get("executor")
    rows = [
        (titles[way], f"{size / _MiB:.0f}", figures.significant(size / first) if first else "–")
        for way, size in held.items()
    ]
    return Table("six held workers, PSS in MiB", ("pool", "all", "of spawn"), tuple(rows))


def _held_bars(held: Mapping[str, float]) -> Iterator[Bar]:
    if "pool" in held and "executor" in held:
        yield Bar(
            "memory of held workers, of spawn", held["pool"] / held["executor"], 0.5, "at most"
        )


# Empty calls and large arguments.


def nothing() -> None:
    """The empty call that is timed."""


def glance(array: Any) -> float:
    """Look at a large argument, without reading all of it."""
    return float(array[-1])


def _trips(way: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    pool = _open(f"{way}-reused" if way == "pool" else way, 1)
    array = np.ones(_LARGE // 8)
    with pool:
        for _ in range(20):
            pool.submit(nothing).result()
        empty = [_timed(lambda: pool.submit(nothing)) for _ in range(options["calls"])]
        pool.submit(glance, array).result()
        large = [_timed(lambda: pool.submit(glance, array)) for _ in range(options["large"])]
    return {"empty": figures.median(empty), "large": figures.median(large)}


def _timed(submit: Callable[[], "Future[Any]"]) -> float:
    began = time.perf_counter()
    submit().result()
    return time.perf_counter() - began


def _trip_table(trips: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    titles = {"executor": "ProcessPoolExecutor, spawn", "pool": "sublet.Pool(reuse=True)"}
    rows = [
        (
            titles[way],
            f"{figures.median(by['empty']) * 1e6:.0f} µs",
            f"{figures.median(by['large']) * 1e3:.1f} ms",
        )
        for way, by in trips.items()
    ]
    return Table(
        "one call in a reused worker, there and back",
        ("pool", "empty", "100 MB array"),
        tuple(rows),
        ("Medians of the medians of each round.",),
    )


def _trip_bars(trips: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Bar]:
    if "pool" in trips and "executor" in trips:
        ours, theirs = trips["pool"], trips["executor"]
        empty = figures.paired_ratio(ours["empty"], theirs["empty"])
        yield Bar("empty call, of ProcessPoolExecutor", empty, 2, "at most")
        large = figures.paired_ratio(theirs["large"], ours["large"])
        yield Bar("100 MB argument, faster than pickle", large, 3, "at least")


# Many trainings through one pool.


def _flat(way: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Memory of all processes after each ten trainings; the pool is idle then."""
    import sublet

    sizes = []
    with _open(way, _WIDTH) as pool:
        for ten in range(options["count"] // 10):
            stamps = [str(directory / f"stamp-{ten}-{number}") for number in range(10)]
            list(pool.map(perform, ["short_job"] * 10, stamps))
            broker = sublet.status().pid
            pids = {one.pid for root in (os.getpid(), broker) for one in processes.tree(root)}
            sizes.append(sum(map(processes.pss, pids)))
    return {"bytes": sizes}


def _flat_table(flat: Mapping[str, Sequence[int]]) -> Table:
    titles = {"pool": "a worker per training", "pool-reused": "reused workers"}
    rows = [
        (
            titles[way],
            str(10 * len(sizes)),
            f"{figures.median(sizes[1:6]) / _MiB:.0f}",
            f"{max(sizes[1:]) / _MiB:.0f}",
            f"{figures.median(sizes[-5:]) / _MiB:.0f}",
            figures.percent(_growth(sizes)),
        )
        for way, sizes in flat.items()
    ]
    return Table(
        "trainings through one pool: memory of all processes, PSS in MiB",
        ("sublet.Pool", "trainings", "from 20 on", "most", "at the end", "growth"),
        tuple(rows),
        ("from 20 on, at the end: medians of five looks, one after each ten trainings.",),
    )


def _growth(sizes: Sequence[int]) -> float:
    """The middle of the last five looks beside that of the five from the twentieth training on: one
    look differs from the next by several percent, by what was being forked at the moment."""
    return figures.median(sizes[-5:]) / figures.median(sizes[1:6]) - 1


def _flat_bars(flat: Mapping[str, Sequence[int]]) -> Iterator[Bar]:
    for way, sizes in flat.items():
        yield Bar(f"growth of memory, {way}", _growth(sizes) * 100, 5, "at most", "%")


# Calls in threads and sessions, beside each alone.


def train(seed: int) -> list[float]:
    """A short training whose losses depend on its seed only."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    x, y = np.random.rand(64, 8), np.random.rand(64, 1)
    history = model.fit(x, y, epochs=2, batch_size=16, verbose=0)
    return [float(loss) for loss in history.history["loss"]]


def descend(seed: int) -> list[float]:
    """The same for TensorFlow 1: a graph and a session of the function's own."""
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.set_random_seed(seed)
    weights = v1.get_variable("weights", (8, 1), initializer=v1.random_normal_initializer())
    rows = v1.random_uniform((64, 8))
    loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
    step = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return [float(session.run([loss, step])[0]) for _ in range(10)]


def _same(way: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    import sublet

    function = train if way == "thread" else descend
    alone: dict[int, list[float]] = {}
    single: Isolation = "process" if way == "thread" else "session"
    for seed in range(4):
        # A pool each, so that each is the first and only call of its process.
        with sublet.Pool(1, memory="256MiB", isolation=single) as pool:
            alone[seed] = pool.submit(function, seed).result()
    unequal = 0
    for _ in range(options["rounds"]):
        # Which of the two literals it is came through the command line.
        with sublet.Pool(4, memory="512MiB", isolation=way) as pool:  # type: ignore[arg-type]
            results = list(pool.map(function, range(4)))
        unequal += sum(results[seed] != alone[seed] for seed in range(4))
    return {"calls": 4 * options["rounds"], "unequal": unequal}


def _same_table(same: Mapping[str, Sequence[int]]) -> Table:
    rows = [(f"{way} pool", str(calls), str(unequal)) for way, (calls, unequal) in same.items()]
    return Table(
        "calls four at a time in one process, beside each alone in one",
        ("pool", "calls", "different results"),
        tuple(rows),
    )


# What they have in common.


def _open(way: str, width: int) -> Executor:
    if way.startswith("pool"):
        import sublet

        return sublet.Pool(width, memory="256MiB", reuse=way == "pool-reused")
    context: Any = multiprocessing.get_context("spawn" if way == "executor" else way)
    if way == "forkserver":
        context.set_forkserver_preload(["bench.programs.short_job"])
    return ProcessPoolExecutor(width, context)


@contextlib.contextmanager
def _noted(failures: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except processes.Failed as trouble:
        failures.append(f"{what}: {trouble}")


def _apart(what: str, way: str, options: dict[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own, in a sandbox of its own."""
    with sandbox() as home:
        return _ask(home, what, way, options)


def _ask(home: Sandbox, what: str, way: str, options: dict[str, Any]) -> dict[str, Any]:
    env = {**home.env, "PYTHONPATH": str(ROOT)}
    words: list[str | Path] = [sys.executable, "-m", "bench.pool", what, way, home.directory]
    processes.run([*words, json.dumps(options)], env, home.log, timeout=900)
    document: dict[str, Any] = json.loads((home.directory / "sample.json").read_text())
    return document


def _write(directory: Path, document: dict[str, Any]) -> None:
    (directory / "sample.json").write_text(json.dumps(document))


if __name__ == "__main__":
    _work = {"HELD": _held, "TRIPS": _trips, "FLAT": _flat, "SAME": _same}[sys.argv[1]]
    _write(Path(sys.argv[3]), _work(sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])))
