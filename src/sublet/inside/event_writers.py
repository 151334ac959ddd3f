"""Notes where a leased program writes TensorBoard's event files, whichever library it uses.

It sits where the writers are made: those of TensorFlow (also for Keras), of TensorBoard (also for
PyTorch) and of tensorboardX. It never raises into the program, and changes nothing of what it does.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any

from ..formats import event_logs
from ..formats.event_logs import EventLog
from .current_lease import current

_lock = threading.Lock()
_noted: tuple[int, str, list[EventLog]] = (0, "", [])
"""The process, its attempt's directory, and what it has noted there."""


def watch_tensorflow() -> None:
    """Note the directories of TensorFlow's writers, if they are where they were."""
    try:
        from tensorflow.python.ops import gen_summary_ops
        from tensorflow.python.summary.writer import event_file_writer

        original = gen_summary_ops.create_summary_file_writer
    except (ImportError, AttributeError):
        return

    @functools.wraps(original)
    def create_summary_file_writer(*args: Any, **kwargs: Any) -> Any:
        note(kwargs.get("logdir", args[1] if len(args) > 1 else None))
        return original(*args, **kwargs)

    gen_summary_ops.create_summary_file_writer = create_summary_file_writer
    _watch_class(event_file_writer)


def watch_modules(names: tuple[str, ...]) -> None:
    """Note the directories of the writers in these modules, as far as they are imported."""
    for name in names:
        _watch_class(sys.modules.get(name))


def _watch_class(module: Any) -> None:
    writer = getattr(module, "EventFileWriter", None)
    original = getattr(writer, "__init__", None)
    if writer is None or original is None or getattr(original, "_sublet", False):
        return

    @functools.wraps(original)
    def init(self: Any, logdir: Any, *args: Any, **kwargs: Any) -> None:
        note(logdir)
        original(self, logdir, *args, **kwargs)

    init._sublet = True  # type: ignore[attr-defined]  # Functions have no such attribute.
    writer.__init__ = init


def note(logdir: Any) -> None:
    """A writer is about to be made for this directory: a path, or a tensor with one."""
    global _noted
    try:
        lease, text = current(), _text(logdir)
        if lease is None or not text:
            return
        directory = text if "://" in text else os.path.abspath(text)
        with _lock:
            if _noted[:2] != (os.getpid(), lease.dir):
                _noted = (os.getpid(), lease.dir, [])
            logs = _noted[2]
            if len(logs) < event_logs.MOST and all(one.directory != directory for one in logs):
                logs.append(EventLog(directory, os.getpid(), time.time()))
                event_logs.note(lease.dir, logs)
    except Exception:
        return  # The program has its writer all the same.


def _text(logdir: Any) -> str:
    if hasattr(logdir, "numpy"):
        logdir = logdir.numpy()
    if isinstance(logdir, (str, bytes, os.PathLike)):
        return os.fsdecode(logdir)
    return ""


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
