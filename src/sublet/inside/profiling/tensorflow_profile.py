"""TensorFlow's own profile of this process, of some steps or of some time.

TensorFlow makes one profile at a time in a process. A program that makes its own, as Keras'
TensorBoard callback does, is left alone; if it begins while this one is made, this one ends, and
what it has is kept.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import threading
import time
from typing import Any

from ...formats.lease import LeaseTerms
from ...formats.profile_order import LONGEST, ProfileOrder
from .. import allocator
from . import operations
from .steps import KERAS, Step

_LARGEST = 512 << 20
"""Bytes that this process may grow by meanwhile, beside TensorFlow's pool: the profiler keeps all
events in memory."""
_WITHOUT_STEPS = "a program without steps is profiled with `sublet profile --seconds`"
Event = tuple[Any, ...]


class TensorFlowProfile:
    """The profile for one order. `look` and `close` are for one thread, the rest for any."""

    def __init__(self, order: ProfileOrder, lease: LeaseTerms) -> None:
        self._order = order
        self._lease = lease
        self._lock = threading.RLock()
        self._session: Any = None
        self._gives_way: Any = None
        self._began = self._took = self._began_wall = 0
        self._due = time.monotonic() + LONGEST
        """When the wait for the first step is given up."""
        self._beside = 0
        """Bytes of this process beside the pool, when the profile began."""
        self._steps = {KERAS: 0}
        self._scratch = f"{order.part(os.getpid())}-tensorflow"
        self._notes: list[str] = []
        self._over = self._done = False
        if not order.steps:
            self._begin()

    def step_begins(self, step: Step) -> None:
        """Begin with this step if it is the first, and mark it."""
        if self._over:
            return
        with self._lock:
            if self._session is None and not self._over:
                self._begin()
            if self._session is not None:
                from tensorflow.python.profiler.trace import Trace

                # `_r` makes it a step of TensorBoard's pages.
                step.marker = Trace(step.name, step_num=self._counts(step.kind), _r=1)

    def step_ended(self, step: Step) -> None:
        """Count it, and end with the last."""
        if step.marker is None:
            return
        step.marker.__exit__(None, None, None)
        with self._lock:
            self._steps[step.kind] = self._counts(step.kind) + 1
            if self._order.steps and self._counted >= self._order.steps:
                self._stop()

    def look(self) -> list[Event]:
        """End the profile if it is time to. Returns what there is to write down."""
        with self._lock:
            now = time.monotonic()
            if self._session is not None:
                if now - self._began / 1e9 >= self._order.seconds:
                    self._stop()
                elif self._beside_pool() > self._beside + _LARGEST:
                    grown = f"it had grown by {_LARGEST >> 20} MiB"
                    self._stop(f"TensorFlow's profile was ended early: {grown}")
            elif not self._over and now >= self._due:
                self._stop(f"no step began within {LONGEST:.0f} s; {_WITHOUT_STEPS}")
            return self._results()

    def close(self) -> list[Event]:
        """End the profile now. Returns what there is to write down."""
        with self._lock:
            begun = self._session is not None or self._over
            self._stop("" if begun else f"no step began; {_WITHOUT_STEPS}")
            return self._results()

    @property
    def _counted(self) -> int:
        """Keras' batches if it trains; other calls are then no steps."""
        return self._steps[KERAS] or max(self._steps.values())

    def _counts(self, kind: str) -> int:
        return self._steps.get(kind, 0)

    def _begin(self) -> None:
        try:
            from tensorflow.python.framework import errors_impl
            from tensorflow.python.profiler.internal import _pywrap_profiler

            session = _pywrap_profiler.ProfilerSession()
        except (ImportError, AttributeError) as missing:
            self._over = True
            self._notes.append(f"this TensorFlow cannot be profiled from here: {missing}")
            return
        try:
            # TensorFlow's own options: Python's calls are not traced, which would slow them down.
            session.start(self._scratch, {})
        except errors_impl.AlreadyExistsError:
            self._over = True
            self._notes.append(
                "the program makes a profile itself, which was left alone: TensorFlow makes one "
                "at a time; steps and leases were recorded"
            )
            return
        except Exception as wrong:
            self._over = True
            self._notes.append(f"TensorFlow's profiler does not start: {wrong}")
            return
        self._session, self._beside = session, self._beside_pool()
        self._began, self._began_wall = time.monotonic_ns(), time.time_ns()
        self._gives_way = _GivesWay(self)

    def _beside_pool(self) -> int:
        """Bytes of this process that are not in the CPU's pool, which keeps what it once held."""
        used = None if self._lease.on_gpu else allocator.usage(self._lease)
        return _resident() - (0 if used is None else used[1])

    def give_way(self) -> None:
        """End, because the program begins a profile of its own."""
        with self._lock:
            if self._session is not None:
                self._stop("TensorFlow's profile was ended: the program began one of its own")

    def _stop(self, note: str = "") -> None:
        if note:
            self._notes.append(note)
        self._over = True
        if self._session is None:
            return
        self._took = time.monotonic_ns() - self._began
        session, self._session = self._session, None
        self._gives_way.remove()
        try:
            session.export_to_tb()
        except Exception as wrong:
            self._notes.append(f"TensorFlow's profile was lost: {wrong}")

    def _results(self) -> list[Event]:
        events: list[Event] = [("note", note) for note in self._notes]
        self._notes.clear()
        if not self._over or self._done:
            return events
        self._done = True
        try:
            for path in glob.glob(f"{glob.escape(self._scratch)}/**/*.xplane.pb", recursive=True):
                events += operations.read(self._keep(path), self._began_wall, self._began)
        except Exception as wrong:
            events.append(("note", f"TensorFlow's profile could not be kept whole: {wrong}"))
        return [*events, ("done", self._counted, self._took)]

    def _keep(self, path: str) -> str:
        """Move it to where it is looked for. Of several processes each is a host to TensorBoard."""
        os.makedirs(self._order.profile, exist_ok=True)
        kept = os.path.join(self._order.profile, f"{self._order.name}.{os.getpid()}.xplane.pb")
        os.replace(path, kept)
        return kept


class _GivesWay:
    """Stands before the profiler that `tf.profiler` uses, and ends ours when the program starts
    one: two would be an error of the program's."""

    def __init__(self, profile: TensorFlowProfile) -> None:
        self._profile, self._pid = profile, os.getpid()
        self._module: Any = None
        self._own: Any = None
        with contextlib.suppress(ImportError, AttributeError):
            from tensorflow.python.profiler import profiler_v2

            self._own = profiler_v2._pywrap_profiler
            self._module = profiler_v2
            profiler_v2._pywrap_profiler = self

    def ProfilerSession(self) -> Any:  # TensorFlow's name.
        if self._pid == os.getpid():
            self._profile.give_way()
        return self._own.ProfilerSession()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def remove(self) -> None:
        if self._module is not None and self._module._pywrap_profiler is self:
            self._module._pywrap_profiler = self._own


def _resident() -> int:
    """Bytes of this process's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
