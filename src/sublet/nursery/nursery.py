"""The warm process, which has imported TensorFlow and Keras, and forks workers.

    broker ──order, link, streams──▶ nursery ──order──▶ keeper ──go──▶ worker

One pair of a keeper and its worker is always forked ahead, so that an order finds it ready, and the
worker its memory (`rehearsal`). Before each fork the nursery checks that forking is safe: one
thread, no open GPU, no TensorFlow runtime. If it is not, it reports that, and the broker starts
workers cold. A nursery ends with its broker; keepers and workers do not.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from sublet.formats import packets
from sublet.formats.worker_spec import WorkerSpec
from sublet.inside.warm_start import import_reads, preloaded, program
from sublet.keeper import keeper, subreaper
from sublet.nursery import preload, release_pages
from sublet.nursery.rehearsal import Rehearsal


def _why_off(error: Exception) -> str:
    """Why nothing could be preloaded, and what helps."""
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        return f"no TensorFlow there; install it: {sys.executable} -m pip install tensorflow"
    return f"{type(error).__name__}: {error}"[:500]


def main(link: socket.socket) -> None:
    """Warm up, then serve the broker; in a worker, become its program."""
    began = time.monotonic()
    before = program.Before.now()
    # Garbage collections would take a quarter of the warm-up, for 2 MiB of garbage.
    gc.disable()
    # Before the imports, so that a package installed meanwhile counts as a change.
    report: dict[str, Any] = {"packages": import_reads.ages(before.path)}
    needs = preloaded.Needs()
    try:
        with import_reads.traced() as read, needs.traced():
            version = preload.preload()
    except Exception as error:
        packets.send(link, {"event": "off", "why": _why_off(error), **report})
        return
    unsafe = unsafe_to_fork()
    if unsafe:
        packets.send(link, {"event": "off", "why": unsafe, **report})
        return
    base = program.Interpreter.after_preload(before, needs, read)
    report["packages"] |= import_reads.ages(read.files)
    report["variables"] = sorted(read.variables)
    report["written"] = read.set_by_imports()
    # Imports have read source files. In a worker, dropping these lines would copy 11 MiB of pages.
    linecache.clearcache()
    gc.freeze()
    gc.enable()
    with contextlib.suppress(OSError):
        release_pages.release()
    took = time.monotonic() - began
    packets.send(link, {"event": "warm", "tensorflow": version, "took": took, **report})
    spec = _serve(link)
    if spec is not None:
        program.become(spec, base)


def unsafe_to_fork() -> str:
    """Why forking is not safe now; empty if it is."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"{threads} threads run in it"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                return "it has a GPU open"
    return "TensorFlow's runtime has started in it" if preload.runtime_started() else ""


def _serve(link: socket.socket) -> WorkerSpec | None:
    """Give each order to a waiting pair. Returns the spec in a worker, and None in a nursery whose
    broker is gone."""
    wake = subreaper.wake_on(signal.SIGCHLD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready: socket.socket | None = None
    rehearsal = Rehearsal()
    pause = 0.0
    while True:
        awake, _, _ = select.select([link.fileno(), wake.reading], [], [], None if ready else pause)
        if wake.reading in awake:
            with contextlib.suppress(BlockingIOError):
                os.read(wake.reading, 4096)
            for pid, status in subreaper.collect():
                rehearsal.ended(pid, status)
        if ready is None and (not awake or link.fileno() in awake):
            unsafe = unsafe_to_fork()
            if unsafe:
                packets.send(link, {"event": "off", "why": unsafe})
                return None
            ready, theirs = packets.pair()
            if os.fork() == 0:
                wake.close()
                for sock in (link, ready):
                    sock.close()
                return _become_pair(theirs, rehearsal.pages.prefault)
            theirs.close()
            if rehearsal.is_due():
                rehearsal.fork()
                if rehearsal.pid == 0:
                    wake.close()
                    for sock in (link, ready):
                        sock.close()
                    return rehearsal.spec()
        if link.fileno() not in awake:
            continue
        received = packets.receive(link)
        if received is None:
            return None
        order, descriptors = received
        assert ready is not None
        # If the pair was killed, the link closes here, and the broker knows that nothing has run.
        packets.send(ready, order, descriptors)
        ready.close()
        # The next fork waits a moment, in favour of the program that has just started.
        ready, pause = None, 0.05
        packets.close(descriptors)


def _become_pair(orders: socket.socket, prepare: Callable[[], None]) -> WorkerSpec:
    """Keep a worker once an order comes. Returns in the worker."""

    def await_order() -> keeper.StartOrder | None:
        received = packets.receive(orders)
        orders.close()
        if received is None:
            return None
        order, numbers = received
        return keeper.StartOrder.of(order["start"], numbers)

    return keeper.keep(await_order, "warm", prepare)
