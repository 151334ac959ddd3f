"""Writes down when TensorFlow runs out of memory, in `oom-<pid>.json` of the attempt's directory.

Chains the program's exception hooks without changing their output. An error that the program
catches is noted too, because it shows that the lease is tight.

On a GPU the lease may have room, and the driver none: a program without a lease has taken it. So
what is free there is noted with each failure, and who holds what.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import threading
import time
from typing import Any

from ..formats import oom_evidence, shares
from . import first_share, measure

_KEPT = 2000
_SAME_FAILURE = 1.0
"""Seconds in which exceptions belong to one failed allocation: an inner one, and one that adds the
operation. The next failure is at least ten seconds away, as TensorFlow retries for that long."""

_TENSOR = re.compile(
    r"OOM when allocating (?:temporary )?tensor (?:with|of) shape ?\[([0-9, ]*)\]"
    r"(?: and type (\w+))?"
)
_BYTES = re.compile(
    r"[Oo]ut of memory[a-z ]* allocat(?:e|ing) (\d+(?:\.\d+)?) ?(bytes|B|KiB|MiB|GiB|TiB)\b"
)
_CONSTANT = re.compile(
    r"Cannot parse tensor from proto:.*?\ndtype: DT_(\w+)\s+tensor_shape \{\n(.*?)\n\}", re.DOTALL
)
"""TensorFlow's message when there was no memory for a constant of a graph."""
_MARKS = re.compile(r"\{\{function_node __wrapped__[^{}]*\}\} ?| \[Op:\w+\](?: name: ?)?")
_SIGNS = (
    *("OOM when allocating", "ut of memory", "ailed to allocate"),
    *("Dst tensor is not initialized", "CUDA_ERROR_OUT_OF_MEMORY"),
)
_OF_DRIVER = "CUDA_ERROR_OUT_OF_MEMORY"
_BESIDE = re.compile(
    r"no (?:blas|dnn)\b.*|DNN library initialization failed.*|cudnn library could not create.*"
    r"|failed to create cu(?:blas|dnn) .*|CU(?:BLAS|DNN)_STATUS_[A-Z_]*ALLOC[A-Z_]*.*"
    r"|(?:nccl|unhandled cuda).* error.*",
    re.IGNORECASE,
)
"""What TensorFlow says when cuBLAS, cuDNN or NCCL does not start. They take their memory of the
driver and not of the pool. They fail for other reasons, too, so this counts on a full GPU only."""
_FULL = 512 << 20
"""Bytes: with less left on a GPU than this, such a library may not start."""
_WIDTHS = {
    **dict.fromkeys(("half", "bfloat16", "int16", "uint16", "qint16", "quint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
    "string": 24,
}
"""Bytes of an element, by TensorFlow's name of the type; others have one byte."""
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

_MOST_HOLDERS = 10

_last_noted: dict[int, float] = {}


def is_oom(message: str) -> bool:
    """Whether it is about memory: a busy server also says "resource exhausted"."""
    return any(sign in message for sign in _SIGNS)


def asked(message: str) -> int:
    """Bytes of the failed allocation; 0 if the text does not say."""
    tensor = _TENSOR.search(message)
    if tensor is not None:
        size = _WIDTHS.get(tensor[2] or "float", 1)
        for extent in tensor[1].replace(" ", "").split(","):
            size *= int(extent) if extent else 1
        return size
    plain = _BYTES.search(message)
    return int(float(plain[1]) * _UNITS.get(plain[2], 1)) if plain is not None else 0


def excerpt(message: str) -> str:
    """The message from the line about memory on, without a graph trace before it and without marks
    of TensorFlow's own functions."""
    beside = _BESIDE.search(message)
    places = [*map(message.find, _SIGNS), -1 if beside is None else beside.start()]
    start = min((at for at in places if at >= 0), default=0)
    if not start and (constant := _CONSTANT.search(message)) is not None:
        shape = ",".join(re.findall(r"size: (\d+)", constant[2]))
        kind = constant[1].lower()
        return f"OOM when allocating tensor with shape[{shape}] and type {kind}, a constant"
    begin = message.rfind("\n", 0, start) + 1
    if start - begin > _KEPT // 2:
        begin = start
    return _MARKS.sub("", message[begin : begin + _KEPT])


def watch(*error_classes: Any) -> None:
    """Note every error of these classes that is about memory when it is made, and again if it is
    not caught."""
    for error_class in error_classes:
        _watch(error_class)


def _watch(error_class: Any) -> None:
    made = error_class.__init__

    @functools.wraps(made)
    def init(self: Any, node_def: Any, op: Any, message: Any, *args: Any) -> None:
        made(self, node_def, op, message, *args)
        if not _concerns_memory(str(message)):
            return
        # Not sooner, so that hooks which the program has set meanwhile are chained, too.
        _chain_hooks()
        note(message, uncaught=False)

    error_class.__init__ = init


def _concerns_memory(message: str) -> bool:
    """Whether it is about memory, or may be."""
    return is_oom(message) or _BESIDE.search(message) is not None


def note(message: Any, uncaught: bool) -> None:
    """Write down one failure. May be called from any thread, and never raises."""
    try:
        usage, text = measure.writer(), str(message)
        if usage is None or not _concerns_memory(text):
            return
        free = None if usage.card is None else usage.card.free()
        if not is_oom(text) and (free is None or free >= _FULL):
            return
        now, thread = time.monotonic(), threading.get_ident()
        known = uncaught and usage.reading.failures > 0
        if not known and now - _last_noted.get(thread, -_SAME_FAILURE) >= _SAME_FAILURE:
            usage.note_usage()
            usage.note_failure(asked(text))
        _last_noted[thread] = now
        reading = usage.reading
        record = {
            "message": excerpt(text),
            "asked": asked(text),
            "limit": reading.limit,
            "peak": reading.peak,
            "current": reading.current,
            "uncaught": uncaught,
            "time": time.time(),
            "refused": _refused(usage, text, free),
            "holders": [] if usage.card is None else _holders(usage.card.held(), usage.pid),
            "siblings": _siblings(usage),
        }
        path = os.path.join(usage.lease.dir, f"{oom_evidence.PREFIX}{usage.pid}.json")
        draft = f"{path}.{thread}"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(draft, path)
    except Exception:
        pass


def _refused(usage: measure.UsageWriter, text: str, free: int | None) -> bool:
    """Whether it was the driver that had no more to give, and not the pool, which asks the driver
    only for what its limit leaves."""
    if not usage.lease.on_gpu:
        return False
    if _OF_DRIVER in text or not is_oom(text):
        return True
    pool = None if usage.ceiling is None else usage.ceiling.pool
    if pool is None:
        return False
    left, size = pool[1] - pool[0], asked(text)
    if not size:
        return free is not None and free < left
    # A limit that was raised too late says nothing of the moment at which it was asked.
    moves = usage.lease.elastic or bool(usage.ceiling and usage.ceiling.siblings)
    late = moves and (free is None or free >= size)
    return size <= left and not late


def _holders(held: dict[int, int], own: int) -> list[tuple[int, str, int]]:
    """The largest of the other processes on the card: number, name, bytes."""
    others = sorted((size, pid) for pid, size in held.items() if pid != own)
    return [(pid, _process_name(pid), size) for size, pid in reversed(others[-_MOST_HOLDERS:])]


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return "?"


def _siblings(usage: measure.UsageWriter) -> str:
    """The other processes of the program, and what each may use."""
    others = [share for share in shares.read(usage.lease.dir) if share.pid != usage.pid]
    return first_share.held_by(others)


@functools.cache
def _chain_hooks() -> None:
    ended, thread_ended = sys.excepthook, threading.excepthook

    @functools.wraps(ended)
    def excepthook(kind: Any, error: Any, traceback: Any) -> None:
        note_uncaught(error)
        ended(kind, error, traceback)

    @functools.wraps(thread_ended)
    def thread_excepthook(args: Any) -> None:
        note_uncaught(args.exc_value)
        thread_ended(args)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Its children print what ends them themselves; that is known while they finalize.
        util.Finalize(None, lambda: note_uncaught(sys.exc_info()[1]), exitpriority=0)


def note_uncaught(error: BaseException | None) -> bool:
    """Note an uncaught error if it is an out-of-memory or was caused by one; whether it was.

    One that was raised within `tf.py_function` comes out of TensorFlow under another name, with the
    message of the first in its own.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        message = _text(one)
        ours = hasattr(one, "error_code") and _concerns_memory(message)
        if ours or _SIGNS[0] in message:
            note(message, uncaught=True)
            return is_oom(message)
        waiting += [one.__context__, one.__cause__]
    return False


def _text(error: BaseException) -> str:
    """The message; a program's own error may have none that can be read."""
    try:
        return str(getattr(error, "message", "") or error)
    except Exception:
        return ""
