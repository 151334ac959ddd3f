"""Who computes which rows of a batch: several devices of this process, and other processes.

All of them have a part of the rows of each batch, as micro-batches have, and the sums of what they
found are applied once. So the result is that of one device, whoever has computed what.

    mirrored      devices of this process. The weights are on the first one, and the others get a
                  copy for each step
    multiworker   processes, each with the weights of its own, which stay the same: sums are made
                  by MultiWorkerMirroredStrategy, once for each batch
    parameter-server
                  processes, of which the first sees the devices of all (parameter_servers.py)
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from ..current_lease import say
from .refused import Refused

STRATEGIES = ("mirrored", "multiworker", "parameter-server")
_workers: Replicas | None = None
"""Those of the cluster that this process has joined: it can do so only once."""


class Replicas:
    """The devices that train together, as one process of them sees it."""

    def __init__(self, devices: list[str], first: int, count: int, strategy: Any = None) -> None:
        self.devices = devices
        """Those of this process."""
        self.first = first
        """The number of its first one among all."""
        self.count = count
        """How many there are in all processes."""
        self._strategy = strategy
        self.stop = False
        """Whether this process wants all to stop after the next step."""
        self._asks: Any = None
        self._asked: Any = None

    @property
    def in_turn(self) -> bool:
        """Whether the devices of this process compute one after the other: logical CPUs have one
        memory and one set of threads."""
        return len(self.devices) > 1 and "CPU" in self.devices[0]

    @property
    def at_once(self) -> int:
        """How many devices of this process compute at the same time in the same memory: all logical
        ones of a card."""
        import tensorflow as tf

        if self.in_turn:
            return 1
        return -(-len(self.devices) // max(1, len(tf.config.list_physical_devices("GPU"))))

    @property
    def leads(self) -> bool:
        """Whether this process does what one of them has to do: write checkpoints."""
        return self.first == 0

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """To be entered while the model is built."""
        return contextlib.nullcontext()

    @property
    def stopped(self) -> bool:
        """Whether any process has wanted to stop when the last step was taken."""
        return self.stop if self._asked is None else bool(self._asked > 0)

    def ends(self, rows: Any, number: int) -> tuple[Any, Any]:
        """The first row of a device of this process, and the row after its last. No device has more
        rows than the first of all."""
        at = self.first + number
        return -(-rows * at // self.count), -(-rows * (at + 1) // self.count)

    def most(self, rows: int) -> int:
        """How many rows of a batch a device has at most."""
        return -(-rows // self.count)

    def sum(self, tensors: list[Any]) -> list[Any]:
        """The sums over all processes, in one operation for each type of number. Also tells who
        wants to stop."""
        import tensorflow as tf

        if self._strategy is None:
            return tensors
        if self._asks is None:
            with tf.init_scope():
                self._asks, self._asked = tf.Variable(0.0), tf.Variable(0.0)
        kinds = [one.dtype for one in tensors]
        asked = [tf.convert_to_tensor(self._asks)]
        floats = [one if one.dtype.is_floating else tf.cast(one, tf.float32) for one in tensors]
        *sums, stops = self._reduced([*floats, *asked])
        self._asked.assign(stops)
        return [tf.cast(one, kind) for one, kind in zip(sums, kinds, strict=True)]

    def gathered(self, tensors: list[Any]) -> list[Any]:
        """The rows of all processes, one after the other."""
        import tensorflow as tf

        if self._strategy is None or not tensors:
            return tensors

        def gather(*own: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return [context.all_gather(self._once(context, one, rows=True), 0) for one in own]

        return self._first_of(self._strategy.run(gather, tuple(tensors)))

    def tell(self) -> None:
        """Have the next sum say whether this process wants to stop."""
        if self._asks is not None:
            self._asks.assign(float(self.stop))

    def agreed(self, values: list[Any]) -> list[Any]:
        """The values that the first process has, in all of them."""
        import tensorflow as tf

        if self._strategy is None:
            return values
        own = [tf.convert_to_tensor(one) for one in values]
        given = [one if self.leads else tf.zeros_like(one) for one in own]
        return list(tf.function(self._reduced, autograph=False)(given))

    def _reduced(self, tensors: list[Any]) -> list[Any]:
        import tensorflow as tf

        def reduce(*own: Any) -> Any:
            context = tf.distribute.get_replica_context()
            sums = list(own)
            for kind in sorted({one.dtype.name for one in own}):
                places = [at for at, one in enumerate(own) if one.dtype.name == kind]
                given = [self._once(context, own[at]) for at in places]
                for at, found in zip(places, context.all_reduce("sum", given), strict=True):
                    sums[at] = found
            return sums

        return self._first_of(self._strategy.run(reduce, tuple(tensors)))

    def _once(self, context: Any, tensor: Any, rows: bool = False) -> Any:
        """What one of the devices of this process adds for all of them."""
        import tensorflow as tf

        if len(self.devices) == 1 or context.replica_id_in_sync_group % len(self.devices) == 0:
            return tf.identity(tensor)  # On the device of the replica.
        return tensor[:0] if rows else tf.zeros_like(tensor)

    def _first_of(self, results: list[Any]) -> list[Any]:
        return [self._strategy.experimental_local_results(one)[0] for one in results]


def replicas(strategy: str) -> Replicas | None:
    """Those of a strategy; None for a single device. Raises Refused if there is no such strategy,
    or if it cannot be had here."""
    if strategy == "mirrored":
        return _mirrored()
    if strategy == "multiworker":
        return _multiworker()
    if strategy == "parameter-server":
        from . import parameter_servers

        return parameter_servers.chief()
    *most, last = map(repr, STRATEGIES)
    raise Refused(f"There is no strategy {strategy!r}.", f"Write {', '.join(most)} or {last}.")


def _mirrored() -> Replicas | None:
    import tensorflow as tf

    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(found) > 1:
        return Replicas([one.name for one in found], 0, len(found))
    say(
        f"there is one device ({found[0].name.rpartition('device:')[2]}), and nothing to mirror: "
        "`sublet run --gpus 2` has two, `sublet launch --logical 2` makes two of one"
    )
    return None


def _multiworker() -> Replicas:
    global _workers
    if _workers is None:
        import tensorflow as tf

        at, roles = _task()
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except RuntimeError as late:
            raise Refused(
                f"This process cannot join its cluster any more: {late}.",
                "Give sublet.fit the function that builds and compiles the model, in place of the "
                "model, and use TensorFlow for nothing else before.",
            ) from None
        devices = list(strategy.extended.worker_devices)
        if strategy.num_replicas_in_sync != roles * len(devices):
            raise Refused(
                f"The workers have {strategy.num_replicas_in_sync} devices, and this one of "
                f"{roles} has {len(devices)}.",
                "Give all of them the same number.",
            )
        _workers = Replicas(devices, at * len(devices), strategy.num_replicas_in_sync, strategy)
    return _workers


def _task() -> tuple[int, int]:
    """Which of the processes that train this one is, and how many there are, by TF_CONFIG."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {})
        chiefs, workers = len(cluster.get("chief", ())), len(cluster.get("worker", ()))
        role, index = task.get("type"), int(task.get("index", 0))
    except (AttributeError, TypeError, ValueError):
        chiefs = workers = index = 0
        role = None
    if role not in ("chief", "worker"):
        raise Refused(
            "Here are no workers: TF_CONFIG names none, or not this process.",
            "Start the program with `sublet launch --workers 2`.",
        )
    return (index if role == "chief" else chiefs + index), chiefs + workers
