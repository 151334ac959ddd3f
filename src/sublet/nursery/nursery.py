"""The warm process: TensorFlow and Keras imported, the runtime not started; it forks workers.

    broker ──order, link, streams──▶ nursery ──order──▶ keeper ──go──▶ worker

One pair of a keeper and its worker is always forked ahead, so that an order finds it ready.
Before every fork it proves that forking is safe: one thread, no open GPU, no runtime. If it
cannot, it says so and the broker starts that worker cold. It ends with its broker; keepers and
workers do not.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from sublet.formats import packets
from sublet.formats.worker_spec import WorkerSpec
from sublet.inside.warm_start import import_reads, preloaded, program
from sublet.keeper import keeper, subreaper
from sublet.nursery import package_ages, preload, release_pages


def main(link: socket.socket) -> None:
    """Warm up, then serve the broker; in a worker, become its program."""
    began = time.monotonic()
    before = program.Before.now()
    # Collections walk all that was imported so far, again and again: a quarter of the warm-up, for
    # 2 MiB of garbage. That is left where it is.
    gc.disable()
    # Looked at before the imports: what is installed while they go on is news, too.
    found: dict[str, Any] = {"packages": package_ages.ages(before.path)}
    needs = preloaded.Needs()
    try:
        with import_reads.traced() as read, needs.traced():
            version = preload.preload()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:500]
        packets.send(link, {"event": "off", "why": why, **found})
        return
    unsafe = census()
    if unsafe:
        packets.send(link, {"event": "off", "why": unsafe, **found})
        return
    base = program.Interpreter.after_preload(before, needs, read)
    found["packages"] |= package_ages.ages(read.files)
    found["variables"] = sorted(read.variables)
    found["written"] = read.set_by_imports()
    gc.freeze()
    gc.enable()
    with contextlib.suppress(OSError):
        release_pages.let_go()
    took = time.monotonic() - began
    packets.send(link, {"event": "warm", "tensorflow": version, "took": took, **found})
    spec = _serve(link, base.preloaded.touch)
    if spec is not None:
        program.become(spec, base)


def census() -> str:
    """Why a fork would not be safe now; empty if it is."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"{threads} threads run in it"
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia"):
                return "it has a GPU open"
    return "TensorFlow's runtime has started in it" if preload.runtime_started() else ""


def _serve(link: socket.socket, prepare: Callable[[], None]) -> WorkerSpec | None:
    """Give each order to a pair that is ready. Returns the spec in a worker; None in a nursery
    whose broker is gone."""
    wake = subreaper.wake_on(signal.SIGCHLD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ready: socket.socket | None = None
    pause = 0.0
    while True:
        awake, _, _ = select.select([link.fileno(), wake.reading], [], [], None if ready else pause)
        if wake.reading in awake:
            with contextlib.suppress(BlockingIOError):
                os.read(wake.reading, 4096)
            for _ in subreaper.collect():
                pass
        if ready is None and (not awake or link.fileno() in awake):
            unsafe = census()
            if unsafe:
                packets.send(link, {"event": "off", "why": unsafe})
                return None
            ready, theirs = packets.pair()
            if os.fork() == 0:
                wake.close()
                for sock in (link, ready):
                    sock.close()
                return _as_pair(theirs, prepare)
            theirs.close()
        if link.fileno() not in awake:
            continue
        heard = packets.receive(link)
        if heard is None:
            return None
        order, descriptors = heard
        assert ready is not None
        # If the pair was killed, the link to the broker closes here, and the broker sees that
        # nothing has run.
        packets.send(ready, order, descriptors)
        ready.close()
        # The next pair can wait until the program that has just started has its first moments.
        ready, pause = None, 0.05
        for number in descriptors:
            os.close(number)


def _as_pair(orders: socket.socket, prepare: Callable[[], None]) -> WorkerSpec:
    """In a keeper that has no order yet, and in its worker."""

    def await_order() -> keeper.StartOrder | None:
        heard = packets.receive(orders)
        orders.close()
        if heard is None:
            return None
        order, numbers = heard
        return keeper.StartOrder.of(order["start"], numbers)

    return keeper.keep(await_order, "warm", prepare)
