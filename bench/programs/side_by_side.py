"""The same calls one after the other, in threads of one process, and in a process each.

Preloads TensorFlow and never starts its runtime: each measurement is made in forks of it.
"""

import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import keras
import numpy as np
import tensorflow as tf

from sublet.inside.isolation.thread_runner import CallOutcome, ThreadRunner

Kept = Any
_DOUBLE = struct.calcsize("d")


def _fit(layers: int, width: int, rows: int, batch: int) -> Kept:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, width)).astype("float32")
    model = keras.Sequential(
        [
            *(keras.layers.Dense(width, activation="relu") for _ in range(layers)),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    model.fit(x, x[:, :1], batch_size=batch, epochs=5, verbose=0)
    return model


def small_training() -> Kept:
    """One layer of 16: a step is all overhead, most of it Python."""
    return _fit(1, 16, 1000, 16)


def large_training() -> Kept:
    """Two layers of 1024: a step is all arithmetic, without the interpreter."""
    return _fit(2, 1024, 512, 256)


def inference() -> Kept:
    """Five hundred requests of one row to a traced function."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(8)])
    call = tf.function(model)
    row = tf.ones([1, 64])
    for _ in range(500):
        call(row).numpy()
    return model, call


KINDS: dict[str, Callable[[], Kept]] = {
    "small training": small_training,
    "large training": large_training,
    "inference": inference,
}


def in_turn(kind: str, count: int) -> Kept:
    return [KINDS[kind]() for _ in range(count)]


def in_threads(kind: str, count: int) -> Kept:
    kept: list[Kept] = []

    def done(number: int, outcome: CallOutcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        kept.append(outcome.value)

    runner = ThreadRunner("thread", count, done)
    for number in range(count):
        runner.start(number, KINDS[kind])
    runner.close()
    if len(kept) != count:
        raise RuntimeError("a call has failed")
    return kept


@contextlib.contextmanager
def _forks(work: Callable[[], Kept], count: int) -> Iterator[tuple[list[int], float]]:
    """That many forks that have done the work and hold on to what it made; and the seconds that
    all of them were on a processor."""
    begun, ended = os.pipe(), os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(ended[1])
                kept = work()
                os.write(begun[1], struct.pack("d", time.process_time()))
                os.read(ended[0], 1)
                code = 0 if kept else 1
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(begun[1])
    received = b""
    while more := os.read(begun[0], 4096):
        received += more
        if len(received) == count * _DOUBLE:
            break
    try:
        if len(received) < count * _DOUBLE:
            raise RuntimeError("a fork has failed")
        yield pids, sum(struct.unpack(f"{count}d", received))
    finally:
        os.close(ended[1])
        for pid in pids:
            os.waitpid(pid, 0)
        for end in (begun[0], ended[0]):
            os.close(end)


def _pss(pid: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def measure(kind: str, way: str, count: int) -> tuple[float, float, int]:
    """Seconds until all are done, on the clock and on processors, and bytes that all processes
    together hold more than before."""
    before = _pss("self")
    began = time.perf_counter()
    if way == "processes":
        forks = _forks(KINDS[kind], count)
    else:
        work = in_threads if way == "threads" else in_turn
        forks = _forks(lambda: work(kind, count), 1)
    with forks as (pids, processors):
        took = time.perf_counter() - began
        return took, processors, _pss("self") + sum(_pss(str(pid)) for pid in pids) - before


def main(answers: TextIO) -> None:
    """For each line asked, `kind,way,count`, answer with both times and the bytes."""
    for line in sys.stdin:
        kind, way, count = line.strip().split(",")
        print(json.dumps(measure(kind, way, int(count))), file=answers, flush=True)


if __name__ == "__main__":
    # What TensorFlow prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        main(output)
