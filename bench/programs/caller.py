"""One client process with one call on the way: `caller.py WAY WHERE`.

WAY is `copy` (the model in this very process; WHERE holds the models), `connect` and `buffer`
(`sublet.connect`, with an array of its own and with one in shared memory) or `grpc` (Python's
gRPC; WHERE is a port). Says `ready`; then each line `MODEL SECONDS` is answered by latencies.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES = {"mlp": (1, 784), "images": (32, 224, 224, 3)}
_WARM = 5


def _copy(model: str, where: str) -> Callable[[], Any]:
    from bench.programs.greedy import load

    call = load(f"{where}/{model}/1")
    rows = _rows(model)
    return lambda: call(rows)


def _connect(model: str, where: str) -> Callable[[], Any]:
    import sublet

    served = sublet.connect(model)
    rows = _rows(model)
    return lambda: served(rows)


def _buffer(model: str, where: str) -> Callable[[], Any]:
    import sublet

    served = sublet.connect(model)
    rows = served.buffer(SHAPES[model], np.float32)
    rows[...] = _rows(model)
    return lambda: served(rows)


def _grpc(model: str, where: str) -> Callable[[], Any]:
    import grpc

    from bench import wire

    rows = _rows(model)
    content = rows.tobytes()
    prefix = wire.predict_message(model, "x", rows.shape, content)[: -len(content)]
    size = ("grpc.max_send_message_length", -1)
    call = grpc.insecure_channel(f"127.0.0.1:{where}", [size]).unary_unary(wire.PREDICT)
    return lambda: call(prefix + rows.tobytes())


def _rows(model: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).random(SHAPES[model], "float32")


WAYS = {"copy": _copy, "connect": _connect, "buffer": _buffer, "grpc": _grpc}


def main(way: str, where: str) -> None:
    """Until the end of the standard input."""
    calls = {model: WAYS[way](model, where) for model in SHAPES}
    for call in calls.values():
        for _ in range(_WARM):
            call()
    print("ready", flush=True)
    for line in sys.stdin:
        model, seconds = line.split()
        print(json.dumps(_repeat(calls[model], float(seconds))), flush=True)


def _repeat(call: Callable[[], Any], seconds: float) -> list[float]:
    """Latencies after half of this time has passed: until then the others begin."""
    began = now = time.perf_counter()
    latencies = []
    while now < began + seconds * 1.5:
        call()
        then, now = now, time.perf_counter()
        if then >= began + seconds / 2:
            latencies.append(now - then)
    return latencies


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
