"""Short calls as plain Ray tasks, in a pool on Ray, and in a pool of this machine.

The cluster is three nodes on this machine, each with one processor for Ray and a broker of its own;
the pool of this machine has three workers. Each call loads TensorFlow and computes a sum, in a
process of its own everywhere.
"""

import contextlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import figures
from bench.processes import Failed
from bench.report import Bar, Result, Table

CALLS, NODES = 24, 3
WAYS = {
    "tasks": "plain Ray tasks with max_calls=1: a fresh worker for each call",
    "local": "sublet.Pool on this machine, warm",
    "ray, first": 'sublet.Pool(on="ray"), the first of a program: Ray starts its processes',
    "ray, again": "the same, a moment later: they are still there",
}
_MEMORY = 128 << 20


def total(number: int) -> float:
    """What each call does."""
    import tensorflow as tf

    return float(tf.reduce_sum(tf.ones([1000, number + 1])))


def measure(quick: bool) -> Result:
    """Each way in turns."""
    with _cluster():
        return result(_rounds(1 if quick else 3))


def result(samples: Mapping[str, Sequence[float]]) -> Result:
    """The table and the bars for these seconds."""
    median = {way: figures.median(samples[way]) for way in WAYS}
    table = Table(
        f"{CALLS} short calls, median",
        ("way", "seconds", "each", "rounds"),
        tuple(
            (way, figures.seconds(took), figures.seconds(took / CALLS), str(len(samples[way])))
            for way, took in median.items()
        ),
        tuple(f"{way}: {said}." for way, said in WAYS.items()),
    )
    bars = []
    for way in ("ray, first", "ray, again"):
        bars += [
            Bar(f"{way}: faster than plain tasks", median["tasks"] / median[way], 2, "at least"),
            Bar(f"{way}: the time of a local pool", median[way] / median["local"], 1.3, "at most"),
        ]
    return Result("ray", (table,), tuple(bars), samples)


def _rounds(count: int) -> dict[str, list[float]]:
    import ray

    import sublet
    from sublet.pool import cluster

    task = ray.remote(num_cpus=1, memory=_MEMORY, max_calls=1)(total)

    def tasks() -> list[float]:
        cluster.workers_on("ray").end_idle()  # They hold all processors.
        found: list[float] = ray.get([task.remote(number) for number in range(CALLS)])
        return found

    def pooled(on: str) -> Callable[[], list[float]]:
        def run() -> list[float]:
            with sublet.Pool(NODES, memory=_MEMORY, on=on) as pool:
                return list(pool.map(total, range(CALLS), progress=False))

        return run

    def first() -> list[float]:
        cluster.workers_on("ray").end_idle()
        return pooled("ray")()

    ways = {
        "tasks": tasks,
        "local": pooled("local"),
        "ray, first": first,
        "ray, again": pooled("ray"),
    }
    wanted = [1000.0 * (number + 1) for number in range(CALLS)]
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    pooled("local")(), pooled("ray")()  # The nurseries load TensorFlow.
    for _ in range(count):
        for way, run in ways.items():
            began = time.monotonic()
            if run() != wanted:
                raise Failed(f"{way}: wrong sums")
            samples[way].append(time.monotonic() - began)
    return samples


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """Three nodes and this process, each with a home."""
    import ray
    from ray.cluster_utils import Cluster

    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        homes = [str(root / f"h{number}") for number in range(NODES + 1)]
        common = {
            "SUBLET_CONFIG": os.devnull,
            "SUBLET_CPU_MEMORY": "4GiB",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        os.environ |= {"SUBLET_HOME": homes[-1], **common}
        os.environ.pop("RAY_ADDRESS", None)
        cluster: Any = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for home in homes[:-1]:
                    node = {
                        "num_cpus": 1,
                        "num_gpus": 0,
                        "memory": 1 << 30,
                        "object_store_memory": 100 << 20,
                        "env_vars": {"SUBLET_HOME": home, **common},
                    }
                    if cluster is None:
                        head = {**node, "include_dashboard": False, "temp_dir": str(root / "r")}
                        cluster = Cluster(initialize_head=True, head_node_args=head)
                    else:
                        cluster.add_node(**node)
                ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
            yield
        finally:
            ray.shutdown()
            if cluster is not None:
                cluster.shutdown()
            for home in homes:
                environ = {**os.environ, "SUBLET_HOME": home}
                words = [sys.executable, "-m", "sublet", "down", "--stop"]
                subprocess.run(words, env=environ, check=False, capture_output=True)
