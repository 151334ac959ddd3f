"""Records for the orders that hold, in a thread that ends with the last of them.

Never raises into the program. What is kept is bounded: `_MOST` events for each order.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from typing import Any

from ...formats import profile_order
from ...formats.lease import LeaseTerms
from ...formats.profile_order import ProfileOrder
from .. import allocator
from .steps import Step, StepHooks
from .tensorflow_profile import TensorFlowProfile

_MOST = 40_000
"""Events that are kept for an order: about 4 MiB."""
_EVERY = 0.1
"""Seconds between looks at orders, memory and bounds."""


class Recording:
    """What one order has brought in this process so far."""

    def __init__(self, order: ProfileOrder, lease: LeaseTerms) -> None:
        self.order = order
        self.full = False
        self._path = order.part(os.getpid())
        self._lock = threading.Lock()
        self._unwritten: list[list[Any]] = [["hello", os.getpid()]]
        self._count = 0
        self.profile = TensorFlowProfile(order, lease) if order.profile else None

    def add(self, *event: Any) -> None:
        """Keep one event, if there is room; called from any thread."""
        with self._lock:
            self._count += 1
            if self._count < _MOST:
                self._unwritten.append(list(event))
            elif not self.full:
                self.full = True
                self._unwritten.append(["note", f"recorded {_MOST} events, and no more"])

    def look(self) -> None:
        """Have TensorFlow's profile end if it is time to, and write down what there is."""
        if self.profile is not None:
            for event in self.profile.look():
                self.add_always(*event)
        self.write()

    def close(self) -> None:
        """Write down the rest."""
        if self.profile is not None:
            for event in self.profile.close():
                self.add_always(*event)
        self.add_always("end")
        self.write()

    def add_always(self, *event: Any) -> None:
        """Keep an event that is bounded otherwise."""
        with self._lock:
            self._unwritten.append(list(event))

    def write(self) -> None:
        with self._lock:
            events, self._unwritten = self._unwritten, []
        if not events:
            return
        text = "".join(f"{json.dumps(event, separators=(',', ':'))}\n" for event in events)
        try:
            # Opened each time, because a program may close descriptors that it does not know.
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            pass  # The directory is gone or full; the program continues without a recording.


class Recorder:
    """All recordings of this process."""

    def __init__(self, lease: LeaseTerms) -> None:
        self._lease = lease
        self._pid = os.getpid()
        self._recordings: dict[ProfileOrder, Recording] = {}
        self._hooks = StepHooks(self._begins, self._ended)
        self._closing = threading.Lock()
        self.closed = self.leaving = False

    @property
    def stays(self) -> bool:
        """Whether no other may take its place."""
        return self._pid == os.getpid() and (self.leaving or not self.closed)

    def run(self) -> None:
        """Record until no order holds any more."""
        atexit.register(self._leave)
        try:
            self._hooks.install()
            while not self.closed and self._follow_orders():
                self._note_memory()
                for recording in self._recordings.values():
                    recording.look()
                threading.Event().wait(_EVERY)
        finally:
            self.close()
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        """The program ends, and nobody is to begin anew while it does."""
        self.leaving = True
        self.close()

    def close(self) -> None:
        """End all recordings."""
        with self._closing:
            if self.closed or self._pid != os.getpid():
                return
            self.closed = True
            self._hooks.remove()
            for recording in self._recordings.values():
                recording.close()

    def _follow_orders(self) -> bool:
        """Begin and end recordings; whether there are any."""
        before = self._recordings
        holding = profile_order.orders(self._lease.dir)
        # Replaced as a whole: steps are noted in other threads.
        self._recordings = {
            order: before.get(order) or Recording(order, self._lease) for order in holding
        }
        for order in before.keys() - self._recordings.keys():
            before[order].close()
        return bool(self._recordings)

    def _note_memory(self) -> None:
        cards = allocator.card_usage(self._lease)
        if cards:
            now, used = time.monotonic_ns(), max(current for current, _ in cards)
            for recording in self._recordings.values():
                recording.add("memory", now, used)

    def _begins(self, step: Step) -> None:
        for recording in self._recordings.values():
            if recording.profile is not None:
                recording.profile.step_begins(step)

    def _ended(self, step: Step, ended: int) -> None:
        for recording in self._recordings.values():
            if recording.profile is not None:
                recording.profile.step_ended(step)
            recording.add("step", step.thread, step.label, step.began, ended - step.began)


_recorder: Recorder | None = None


def follow(lease: LeaseTerms) -> None:
    """Begin to record if there is an order, and nobody does yet."""
    global _recorder
    if _recorder is not None and _recorder.stays:
        return
    _recorder = Recorder(lease)
    threading.Thread(target=_recorder.run, name="sublet-profile", daemon=True).start()
