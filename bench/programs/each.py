"""Load a model, call it, drop it: `each.py PATH…`. Prints how long each took, then waits."""

import gc
import json
import sys
import time

import numpy as np

from bench.programs.greedy import load


def main(*paths: str) -> list[float]:
    """Seconds of each, after one that does not count."""
    rows = np.random.default_rng(0).random((1, 784), "float32")
    latencies = []
    for path in (paths[0], *paths):
        began = time.perf_counter()
        call = load(path)
        call(rows)
        latencies.append(time.perf_counter() - began)
        del call
        gc.collect()
    return latencies[1:]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    sys.stdin.read()
