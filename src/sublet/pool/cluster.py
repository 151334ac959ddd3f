"""A pool's workers on the nodes of a Ray cluster: Ray chooses the node, the broker there leases.

    RemoteWorker ──commands──▶ Slot (an actor, which holds Ray's resources) ── worker, on its node
         ▲──────────events────────┘

Used by dispatchers as workers of this machine are. Slots are kept for the next worker, as starting
a process of Ray's takes longer than starting a worker. Large buffers travel in Ray's object store.
"""

import contextlib
import os
import pickle
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from sublet import __version__
from sublet.domain.memory import Between, Exactly, Share, parse_memory
from sublet.errors import BadRequest, NodeLost, SubletError, TooLarge, WorldError
from sublet.formats import pickle_transport
from sublet.pool.worker import Terms
from sublet.units import format_bytes

if TYPE_CHECKING:
    from sublet.wire.messages import Ended

_REACHED_WITHIN = 5.0
_KEPT = 10.0
"""Seconds for which a slot without a worker keeps its resources."""


class RemoteWorker:
    """One worker on a node, from the search for a node to its end. Used by one thread at a time."""

    def __init__(
        self, workers: "ClusterWorkers", terms: Terms, label: str, on_wait: Callable[[str], None]
    ) -> None:
        self.ready = False
        self.leaving = False
        self.reusable = terms.calls != 1
        self.served = 0
        self.attempts = 1
        self._on_wait = on_wait
        self._workers = workers
        self._slot = workers.take(terms)
        self._news = _News()
        self._packets: deque[pickle_transport.PicklePacket] = deque()
        self._unread: set[int] = set()
        if not self._slot.placed:
            on_wait(f"waits for a node of the Ray cluster that has {_words(self._slot.needs)}")
        self._number = self._slot.open(replace(terms, device=self._slot.device), label)
        self._ask()

    def fileno(self) -> int:
        """Becomes readable when there is something to hear."""
        return self._news.descriptor

    def answers(self) -> int:
        """The same: what is heard may be an answer."""
        return self._news.descriptor

    def send(self, number: int, call: pickle_transport.PickledObject) -> None:
        """Give it a call; it must be ready."""
        buffers = [pickle.PickleBuffer(one) for one in call.buffers]
        self._slot.do("send", number, call.body, buffers)

    def receive_nowait(self) -> pickle_transport.PicklePacket | None:
        """The next packet that was heard; None if there is none now."""
        return self._packets.popleft() if self._packets else None

    def hear(self) -> "Ended | None":
        """Take in what its slot says; how the worker ended, once it has. Raises a refusal, and
        NodeLost."""
        ended = None
        for events in self._news.take(self._lost):
            self._slot.placed = True
            for word, *what in events:
                if word == "waits":
                    self.ready = False
                    self._on_wait(what[0])
                elif word == "granted":
                    self.ready = True
                    self._on_wait("")
                elif word == "retried":
                    self.ready = False
                    self.attempts += 1
                elif word == "packet":
                    self._packets.append(pickle_transport.PicklePacket(*what))
                elif word == "ended":
                    ended, self._unread = what
                else:
                    raise what[0]
            if ended is None:
                self._ask()
        return ended

    def unread(self) -> set[int]:
        """The calls that a worker had not read when it ended."""
        return self._unread

    def retire(self) -> None:
        """It takes no more calls, as it has said; its slot has heard that, too."""
        self.leaving = True

    def dismiss(self) -> None:
        """Send no more calls: it ends when it has answered those that it has."""
        self.leaving = True
        self._slot.do("dismiss")

    def close(self) -> None:
        """Let go of it; one that still lives is ended on its node."""
        if self._news.close():
            self._slot.do("close")
            self._workers.put_back(self._slot)

    def _ask(self) -> None:
        self._news.expect(self._slot.actor.events.remote(self._number))

    def _lost(self, error: Exception) -> SubletError:
        """What it means that Ray has no answer."""
        import ray

        self._slot.lost = True
        if not isinstance(error, ray.exceptions.RayActorError):
            return WorldError(f"Ray could not start the pool's part on a node: {error}")
        if getattr(error, "_actor_init_failed", False):
            said = str(error).strip().splitlines()[-1]
            return WorldError(
                f"The pool could not start on a node: {said}",
                "Install the same Sublet on every node: pip install 'sublet[tensorflow,ray]'.",
            )
        return NodeLost(
            "The node of the worker is gone, or Ray has ended the pool's process there.",
            "Call it again; `ray status` shows the nodes.",
        )


class _News:
    """What a slot has answered. Ray's threads add, one other takes."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._answers: deque[Any] = deque()

    def expect(self, ref: Any) -> None:
        """Take the answer in when it comes."""
        ref.future().add_done_callback(self._add)

    def take(self, lost: Callable[[Exception], SubletError]) -> list[Any]:
        """All answers that have come."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        found = []
        while self._answers:
            try:
                found.append(self._answers.popleft().result())
            except Exception as error:
                raise lost(error) from error
        return found

    def close(self) -> bool:
        """False if it was closed before."""
        with self._lock:
            if self.descriptor < 0:
                return False
            os.close(self.descriptor)
            self.descriptor = -1
            return True

    def _add(self, answer: Any) -> None:
        with self._lock:
            if self.descriptor >= 0:
                self._answers.append(answer)
                os.eventfd_write(self.descriptor, 1)


class _SlotHandle:
    """The pool's side of a slot: the actor, and what was asked of it."""

    def __init__(self, actor: Any, needs: dict[str, float]) -> None:
        self.actor = actor
        self.needs = needs
        self.device = None if "GPU" in needs else "cpu"
        """None for the GPU that Ray has named in CUDA_VISIBLE_DEVICES."""
        self.placed = self.lost = False
        self.ending: threading.Timer | None = None
        self._turns = 0
        self._opened = 0

    def do(self, what: str, *args: Any) -> None:
        """Ask for something to be done, after all that was asked before."""
        self.actor.do.remote(self._turns, what, *args)
        self._turns += 1

    def open(self, terms: Terms, label: str) -> int:
        """Ask for a worker; returns its number."""
        self._opened += 1
        path = [os.path.abspath(entry) for entry in sys.path]
        self.do("open", self._opened, terms, label, os.getcwd(), path)
        return self._opened


class ClusterWorkers:
    """The workers and slots of all pools of this process. May be used from any thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._lock = threading.Lock()
        self._idle: list[_SlotHandle] = []
        self._actor: Any = None

    def __call__(self, terms: Terms, label: str, on_wait: Callable[[str], None]) -> RemoteWorker:
        """Start a worker."""
        return RemoteWorker(self, terms, label, on_wait)

    def processors(self, on_one_node: bool) -> int:
        """How many processors the cluster has, or its largest node."""
        counts = [int(one.get("CPU", 0)) for one in self._nodes().values()]
        return max(1, *counts) if on_one_node else max(1, sum(counts))

    def size(self) -> tuple[int, int]:
        """How many nodes there are, and how many processors they have."""
        return len(self._nodes()), self.processors(on_one_node=False)

    def take(self, terms: Terms) -> _SlotHandle:
        """A slot that has what these workers need. Raises BadRequest if no node ever has."""
        gpus = any("GPU" in one for one in self._nodes().values())
        needs = _needs(terms, gpus)
        with self._lock:
            others = [slot for slot in self._idle if slot.needs != needs]
            mine = [slot for slot in self._idle if slot.needs == needs]
            slot = mine.pop() if mine else None
            # What slots for other sizes hold may be what is missing.
            self._idle = mine if slot is None else [*mine, *others]
        if slot is not None:
            if slot.ending is not None:
                slot.ending.cancel()
            return slot
        for other in others:
            self._end(other)
        self._refuse_impossible(needs)
        return _SlotHandle(self._start(needs), needs)

    def put_back(self, slot: _SlotHandle) -> None:
        """Keep a slot for a while, if it is of any use."""
        if slot.lost or not slot.placed:
            self._end(slot)
            return
        with self._lock:
            slot.ending = threading.Timer(_KEPT, self._end_idle, (slot,))
            slot.ending.daemon = True
            slot.ending.start()
            self._idle.append(slot)

    def end_idle(self) -> None:
        """Give back to Ray what no worker uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for slot in idle:
            self._end(slot)

    def _end_idle(self, slot: _SlotHandle) -> None:
        with self._lock:
            if slot not in self._idle:
                return
            self._idle.remove(slot)
        self._end(slot)

    def _end(self, slot: _SlotHandle) -> None:
        if slot.ending is not None:
            slot.ending.cancel()
        if self._ray.is_initialized():  # Else it would start a cluster of its own.
            with contextlib.suppress(Exception):  # The cluster may be gone.
                self._ray.kill(slot.actor)

    def _start(self, needs: dict[str, float]) -> Any:
        from sublet.pool.slot import Slot

        if self._actor is None:
            self._actor = self._ray.remote(Slot)
        return self._actor.options(
            max_concurrency=4, scheduling_strategy="SPREAD", **_options(needs)
        ).remote(__version__)

    def _nodes(self) -> dict[str, dict[str, float]]:
        """What the nodes have in all, by address and number."""
        return {
            f"{one['NodeManagerAddress']} {one['NodeID'][:6]}": one["Resources"]
            for one in self._ray.nodes()
            if one["Alive"]
        }

    def _refuse_impossible(self, needs: dict[str, float]) -> None:
        nodes = self._nodes()
        for has in nodes.values():
            if all(has.get(name, 0) >= want for name, want in needs.items()):
                return
        have = "; ".join(
            f"{name}: {_words({key: has.get(key, 0) for key in needs})}"
            for name, has in list(nodes.items())[:8]
        )
        raise TooLarge(
            f"No node of the Ray cluster has {_words(needs)}. There are: {have}.",
            "Ask for less, or add a node that has as much.",
        )


_OF_CLUSTER: dict[str, ClusterWorkers] = {}
"""By Ray's number for this process there: a slot is of use to the next pool, too."""


def workers_on(on: str) -> ClusterWorkers:
    """What starts workers on the cluster that `on` names."""
    ray = connect(on)
    return _OF_CLUSTER.setdefault(
        f"{os.getpid()} {ray.get_runtime_context().get_job_id()}", ClusterWorkers(ray)
    )


def connect(on: str) -> Any:
    """Ray, connected to the cluster that `on` names."""
    ray = imported("sublet.Pool(on=...)")
    address = os.environ.get("RAY_ADDRESS", "auto") if on == "ray" else on
    if ray.is_initialized():
        return ray
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    try:
        if separator:
            socket.create_connection((host.strip("[]"), int(port)), _REACHED_WITHIN).close()
        ray.init(address=address, logging_level="warning")
    except (OSError, ValueError, RuntimeError) as error:
        raise WorldError(
            f"The Ray cluster {address!r} cannot be reached: {error}.".replace("..", "."),
            "Start one with `ray start --head`, or name it: on='ray://HOST:10001', RAY_ADDRESS.",
        ) from error
    return ray


def imported(who: str) -> Any:
    """Ray, or an error that says how to install it."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"{who} needs the package {error.name}, which is not installed.",
            "Install it: pip install 'sublet[ray]'.",
        ) from error
    return ray


def _needs(terms: Terms, gpus: bool) -> dict[str, float]:
    """What Ray sets aside for a worker, in Ray's words."""
    ask = parse_memory(terms.memory)
    needs: dict[str, float] = {"CPU": terms.cpus or terms.threads}
    on_gpu = terms.device != "cpu" and (
        terms.device is not None or (gpus and isinstance(ask, Share))
    )
    if on_gpu and terms.device not in (None, "gpu"):
        raise BadRequest(
            f"On a cluster, Ray chooses the GPU, and {terms.device!r} names one.",
            'Write gpu="any".',
        )
    if on_gpu and not isinstance(ask, Share):
        raise BadRequest(
            f"Ray counts shares of a GPU, and memory={terms.memory!r} is none.",
            'Write memory="25%", or "25% total" to include what the process itself costs.',
        )
    match ask:
        case Share() if on_gpu:
            needs["GPU"] = ask.share
        case Exactly():
            needs["memory"] = ask.bytes
        case Between():
            needs["memory"] = ask.floor
    return needs


def _options(needs: dict[str, float]) -> dict[str, float]:
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {names[key]: amount for key, amount in needs.items()}


def _words(needs: dict[str, float]) -> str:
    said = {"CPU": "{:g} processors", "GPU": "{:g} of a GPU"}
    return ", ".join(
        format_bytes(int(amount)) if key == "memory" else said[key].format(amount)
        for key, amount in needs.items()
    )
