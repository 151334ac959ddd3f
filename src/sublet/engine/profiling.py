"""Profiles of what TensorFlow does in this engine: one at a time, bounded in time and memory.

The profile is left in a file in the engine's own directory, never where a client says.
"""

import glob
import mmap
import os
import shutil
import threading
import time

from sublet.channel.codes import Code, invalid_argument
from sublet.errors import ServingError
from sublet.protobuf_fields import Malformed, messages

LONGEST = 60.0
"""Seconds of a profile."""
_LARGEST = 256 << 20
"""Bytes that an engine may grow by while it is profiled: events are kept in memory."""
_KEPT = 3
"""Profiles that stay on the disk."""
_LOOK = 0.05
_LEVELS = range(4)


class Profiler:
    """Runs one profile at a time; `folder` is removed with the engine."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "profile")
        self._running = threading.Lock()
        self._session = ""
        self._ended = threading.Event()
        self._count = 0

    def run(self, session: str, seconds: float, host_level: int, device_level: int) -> str:
        """Profile for so long, or until `end`; the file, empty if nothing happened. The file stays
        until others have been profiled. Raises ServingError. Blocks."""
        if not 0 < seconds <= LONGEST:
            raise invalid_argument(f"A profile takes more than 0 and at most {LONGEST:g} seconds.")
        if host_level not in _LEVELS or device_level not in _LEVELS:
            raise invalid_argument("The level of a tracer is 0, 1, 2 or 3.")
        if not self._running.acquire(blocking=False):
            raise ServingError("Another profile is running. Try again.", Code.ALREADY_EXISTS)
        try:
            self._ended.clear()
            self._session = session
            return self._profile(time.monotonic() + seconds, host_level, device_level)
        finally:
            self._session = ""
            self._running.release()

    def end(self, session: str) -> None:
        """Let the profile of this session end now, if it runs."""
        if session == self._session:
            self._ended.set()

    def _profile(self, until: float, host_level: int, device_level: int) -> str:
        import tensorflow as tf

        self._count += 1
        # Who asked for the last ones may still be reading them.
        shutil.rmtree(f"{self._folder}/{self._count - _KEPT}", ignore_errors=True)
        place = f"{self._folder}/{self._count}"
        try:
            os.makedirs(place)
            # A profile names where it was written: to its readers this says nothing.
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError as wrong:
            raise ServingError(
                f"There is no place for a profile: {wrong.strerror}.", Code.RESOURCE_EXHAUSTED
            ) from None
        # Python's calls are not traced: they name the server's files, and cost it much.
        options = tf.profiler.experimental.ProfilerOptions(host_level, 0, device_level)
        try:
            tf.profiler.experimental.start(f"/proc/self/fd/{folder}", options)
            try:
                most = _resident() + _LARGEST
                while time.monotonic() < until and _resident() < most:
                    if self._ended.wait(min(_LOOK, max(0.0, until - time.monotonic()))):
                        break
            finally:
                tf.profiler.experimental.stop()
        except (tf.errors.OpError, RuntimeError, OSError) as wrong:
            raise ServingError(f"TensorFlow's profiler failed: {wrong}", Code.INTERNAL) from wrong
        finally:
            os.close(folder)
        found = glob.glob(f"{glob.escape(place)}/**/*.xplane.pb", recursive=True)
        return found[0] if found and _has_events(found[0]) else ""


def _resident() -> int:
    """Bytes of this process's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def _has_events(path: str) -> bool:
    """Whether anything happened: XSpace 1: planes, of each 3: lines, of each 4: events."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return any(
            True
            for plane in messages(data, 1)
            for line in messages(plane, 3)
            for _ in messages(line, 4)
        )
    except Malformed:
        return False
