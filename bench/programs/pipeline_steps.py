"""Steps of a model in two even parts: `pipeline_steps.py MICRO_BATCHES STEPS`.

Two threads, each of which computes one operation at a time. Prints, as JSON, the seconds of all
steps and those in which matrix products were computed, of both threads together: TensorFlow's
profiler knows when each began and ended.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import sublet

_WIDTH, _LAYERS, _BATCH = 512, 8, 1024
_XPLANES = ("tensorflow.tsl", "tensorflow.core", "xprof", "tsl")


def _model(micro_batches: int) -> Any:
    def build() -> Any:
        hidden = [layers.Dense(_WIDTH, "relu") for _ in range(_LAYERS)]
        model = keras.Sequential([layers.Input((_WIDTH,)), *hidden])
        model.compile("sgd", "mse")
        return model

    return sublet.split(build, parts=2, batch_size=_BATCH, micro_batches=micro_batches)


def _products(directory: str) -> list[tuple[float, float]]:
    """When each matrix product began and ended, in seconds."""
    for package in _XPLANES:
        try:
            protos: Any = importlib.import_module(f"{package}.profiler.protobuf.xplane_pb2")
            break
        except ImportError:
            continue
    (path,) = Path(directory).rglob("*.xplane.pb")
    space = protos.XSpace.FromString(path.read_bytes())
    return [
        _interval(line.timestamp_ns, event.offset_ps, event.duration_ps)
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name.endswith("MatMul")
    ]


def _interval(line: int, offset: int, duration: int) -> tuple[float, float]:
    begin = line / 1e9 + offset / 1e12
    return begin, begin + duration / 1e12


def main(micro_batches: int, steps: int) -> None:
    """Measure steps after two that build the graph."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    model = _model(micro_batches)
    x = np.random.default_rng(0).normal(size=(_BATCH, _WIDTH)).astype("float32")
    for _ in range(2):
        model.train_on_batch(x, x)
    with tempfile.TemporaryDirectory() as directory:
        tf.profiler.experimental.start(directory)
        for _ in range(steps):
            model.train_on_batch(x, x)
        tf.profiler.experimental.stop()
        found = _products(directory)
    span = max(end for _, end in found) - min(begin for begin, _ in found)
    print(json.dumps([span, sum(end - begin for begin, end in found), len(found)]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
