"""Parameter servers: the weights are on tasks of their own, and a chief has workers compute.

To the chief, the devices of workers are devices as its own are: each computes a part of the rows of
each batch, and the sums are applied once, where the weights are. So workers wait for each other,
which those of a ClusterCoordinator do not, and the result is that of one device.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import Any

from ..current_lease import say
from .refused import Refused
from .replicas import Replicas

_ROLES = ("chief", "worker", "ps")
_CHIEF_SAVES = 60.0
"""So many seconds a chief has to end when all tasks were told to."""
_chief: Chief | None = None
"""This process, if it is one: it can connect to its cluster only once."""


class Chief(Replicas):
    """The devices of all workers."""

    at_once = 1
    in_turn = False

    def __init__(self, devices: list[str], servers: list[str]) -> None:
        super().__init__(devices, 0, len(devices))
        self._held = dict.fromkeys(servers, 0)
        """Bytes of variables on each parameter server."""

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """While in the body, each variable that is made is put where there are the fewest bytes."""
        import tensorflow as tf

        def create(next_creator: Any, **options: Any) -> Any:
            server = min(self._held, key=self._held.__getitem__)
            with tf.device(server):
                variable = next_creator(**options)
            self._held[server] += (variable.shape.num_elements() or 0) * variable.dtype.size
            return variable

        return tf.variable_creator_scope(create)  # type: ignore[no-any-return]


def chief() -> Chief:
    """The cluster as its chief sees it. Another task does not return from here: it serves until the
    chief has ended. Raises Refused where there is no such cluster."""
    global _chief
    if _chief is not None:
        return _chief
    cluster, role, index = _task()
    import tensorflow as tf
    from tensorflow.python.eager import context

    if role != "chief":
        _serve(cluster, role, index)
    if context.context()._context_handle is not None:
        raise Refused(
            "This process cannot join its cluster any more: it has used TensorFlow already.",
            "Give sublet.fit the function that builds and compiles the model, in place of the "
            "model, and use TensorFlow for nothing else before.",
        )
    # A function that the chief calls next may otherwise read a variable before it was assigned to.
    os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "0"
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=0)
    _chief = Chief(_devices("worker", "GPU") or _devices("worker", "CPU"), _devices("ps", "CPU"))
    return _chief


def _devices(role: str, kind: str) -> list[str]:
    import tensorflow as tf

    names = [one.name for one in tf.config.list_logical_devices(kind)]
    return [name for name in names if name.startswith(f"/job:{role}/")]


def _task() -> tuple[dict[str, list[str]], str, int]:
    """The addresses of all tasks, and which of them this one is, by TF_CONFIG."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster = {role: list(config["cluster"][role]) for role in _ROLES}
        role, index = config["task"]["type"], int(config["task"]["index"])
    except (KeyError, TypeError, ValueError):
        cluster, role, index = {}, "", 0
    if len(cluster.get("chief", ())) != 1 or not cluster["worker"] or not cluster["ps"]:
        raise Refused(
            "Here are no parameter servers: TF_CONFIG does not name a chief, workers and a ps.",
            "Start the program with `sublet launch --chief 1 --workers 2 --ps 1`.",
        )
    if role not in _ROLES:
        raise Refused(
            f"A task {role!r} has no part in a training with parameter servers.",
            "Call sublet.fit in chief, workers and parameter servers only.",
        )
    return cluster, role, index


def _serve(cluster: dict[str, list[str]], role: str, index: int) -> None:
    """Be a worker or a parameter server. SIGTERM ends it when the chief has ended, because a chief
    that is told to end has to take its step to the end, and to save what is here."""
    import tensorflow as tf

    told = threading.Event()
    with contextlib.suppress(ValueError):  # Not in the main thread: then the default ends it.
        signal.signal(signal.SIGTERM, lambda *_: told.set())
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=role, task_index=index, protocol="grpc"
    )
    say(f"{role} {index} serves its chief: the program goes on there")
    told.wait()
    host, _, port = cluster["chief"][0].rpartition(":")
    _wait_for_end(host, int(port))
    del server
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit(128 + signal.SIGTERM)


def _wait_for_end(host: str, port: int) -> None:
    """Wait until nobody hears there any more."""
    patience = time.monotonic() + _CHIEF_SAVES
    while time.monotonic() < patience:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.1)
