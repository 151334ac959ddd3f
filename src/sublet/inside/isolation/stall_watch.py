"""Reports calls that make no progress; never ends one.

A call has made progress if its thread's stack has changed, or if the thread has used a processor at
all: a training loop is nearly always seen at the same place, and a thread that waits for a lock
uses nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from .call_context import CallContext

LOOKS = 4
"""How often a call is looked at in the time after which it counts as stuck."""
FRAMES = 4
"""Frames of a stack that a report shows."""


class _Watched:
    """One call as it was last seen."""

    def __init__(self, call: CallContext, now: float) -> None:
        self.call = call
        self.thread = threading.get_ident()
        self.native = threading.get_native_id()
        self.sight: Any = None
        self.moved = now
        self.report_after = 0.0


class StallWatch:
    """Reports a call that has made no progress for `after` seconds, then again at doubling
    intervals.

    Its thread sleeps while no call runs. With `after` None nothing is watched.
    """

    def __init__(self, after: float | None, notify: Callable[[str], None]) -> None:
        if after is not None and not after > 0:
            raise ValueError(f"stuck_after is {after!r}: give seconds, or None to watch nothing")
        self._after = after
        self._notify = notify
        self._watched: dict[int, _Watched] = {}
        self._change = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def over(self, call: CallContext) -> Any:
        """Watch the calling thread while the body runs."""
        if self._after is None:
            yield
            return
        watched = _Watched(call, time.monotonic())
        with self._change:
            self._watched[watched.thread] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
                self._thread.start()
            self._change.notify()
        try:
            yield
        finally:
            with self._change:
                del self._watched[watched.thread]

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._after is not None
        while True:
            with self._change:
                self._change.wait_for(lambda: self._watched or self._closed)
                self._change.wait_for(lambda: self._closed, self._after / LOOKS)
                if self._closed:
                    return
                watched = list(self._watched.values())
            lines = [line for one in watched if (line := self._look(one))]
            for line in lines:
                self._notify(line)

    def _look(self, watched: _Watched) -> str | None:
        """A line to report, if it is time for one."""
        assert self._after is not None
        frame = sys._current_frames().get(watched.thread)
        if frame is None:
            return None
        now = time.monotonic()
        sight = (_shape(frame), _used(watched.native))
        if sight != watched.sight:
            watched.sight, watched.moved, watched.report_after = sight, now, self._after
            return None
        still = now - watched.moved
        if still < watched.report_after:
            return None
        watched.report_after = 2 * max(still, watched.report_after)
        waits = watched.call.waits_for
        why = f"it waits for {waits}" if waits else f"it is at {_top(frame)}"
        return f"{watched.call} has not moved for {_span(still)}: {why}"


def _shape(frame: FrameType | None) -> tuple[tuple[int, int], ...]:
    """The position of each frame of a stack."""
    places = []
    while frame is not None:
        places.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(places)


def _used(native: int) -> str:
    """The processor time of a thread, as the kernel counts it."""
    try:
        with open(f"/proc/self/task/{native}/schedstat") as file:
            return file.read().partition(" ")[0]
    except OSError:
        return ""


def _top(frame: FrameType | None) -> str:
    """The innermost frames of a stack, innermost first."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES:
        code = frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return ", from ".join(places)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
