"""The broker's process: one per user and home, started by the first command that needs it."""

import contextlib
import gc
import os
import signal
import sqlite3
import sys

from sublet import __version__, descriptors
from sublet.backends.ray.backend import RayBackend
from sublet.backends.ray.devices import ProbeWithNodes
from sublet.broker import log
from sublet.broker.broker import Broker
from sublet.broker.connections import Listener
from sublet.broker.ledger import Ledger
from sublet.broker.lock import Lock, only_broker
from sublet.clock import SystemClock
from sublet.devices import Probe
from sublet.errors import BadRequest, SubletError, Superseded, WorldError
from sublet.home import Home
from sublet.keeper import cgroup, subreaper
from sublet.reactor import Reactor
from sublet.units import parse_bytes

_RARELY = (2_000, 100, 100)
_LOOK = 2.0
"""Seconds between looks whether the home is still there, and ours."""


def main() -> int:
    """Serve until asked to end. The descriptor named in argv gets `ready`, or why it is not."""
    report = int(sys.argv[1]) if len(sys.argv) > 1 else None
    descriptors.raise_limit()
    # Whoever has started it may block signals, as Ray's workers do; programs would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    home = Home.find()
    try:
        home.make()
        _choose_log(home)
        with only_broker(home) as lock:
            broker, listener = _open(home)
            log.record("broker started", {"pid": os.getpid(), "version": __version__})
            _report(report, "ready")
            return _run(broker, listener, lock)
    except SubletError as error:
        _report(report, f"{type(error).__name__}\n{error.message}\n{error.hint}")
    except (OSError, sqlite3.Error) as error:
        message = f"The state directory {home.path} cannot be used: {error}."
        _report(report, f"{WorldError.__name__}\n{message}\nFree some space, or see {home.log}.")
    return 1


def _run(broker: Broker, listener: Listener, lock: Lock) -> int:
    """Run until asked to end. A broker that has lost its home ends at once and touches nothing: its
    workers and the socket may be another's by now."""

    def look() -> None:
        lock.check()
        listener.check()
        broker.reactor.call_later(_LOOK, look)

    try:
        look()
        broker.run()
    except Superseded as error:
        log.note(str(error))
        return 1
    finally:
        listener.close()
        log.record("broker ended", {"pid": os.getpid()})
    return 0


def _open(home: Home) -> tuple[Broker, Listener]:
    probe = ProbeWithNodes(Probe.open(_cpu_memory()), home)
    ledger = Ledger.open(home.ledger)
    subreaper.adopt_orphans()
    cgroup.leave()
    reactor = Reactor()
    backend = RayBackend(reactor, home)
    broker = Broker(reactor, home, ledger, probe, SystemClock(), backend)
    collect_rarely()
    _watch_signals(reactor, broker, backend)
    return broker, Listener(reactor, home.socket, broker.requests)


def collect_rarely() -> None:
    """Have the garbage collector look at what is young only, and little of it at a time.

    Records have no cycles, and ten thousand of them would be looked through again and again.
    """
    gc.freeze()
    gc.set_threshold(*_RARELY)


def _choose_log(home: Home) -> None:
    """Log as the user wants it."""
    form = os.environ.get("SUBLET_LOG", "") or "text"
    if form not in ("text", "json"):
        raise BadRequest(f"SUBLET_LOG={form!r} is no kind of log.", "Write text or json.")
    if form == "json":
        log.use_json(home.log)


def _cpu_memory() -> int | None:
    """What the user sets as the capacity of the CPU device."""
    text = os.environ.get("SUBLET_CPU_MEMORY")
    if not text:
        return None
    try:
        return parse_bytes(text)
    except BadRequest as error:
        raise BadRequest(f"SUBLET_CPU_MEMORY={text!r}: {error.message}", error.hint) from None


def _watch_signals(reactor: Reactor, broker: Broker, backend: RayBackend) -> None:
    """Signals only make a note; the loop acts."""
    reading = subreaper.wake_on(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT).reading
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def signalled() -> None:
        numbers = os.read(reading, 4096)
        if signal.SIGCHLD in numbers:
            backend.reap()
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            broker.end()

    reactor.watch(reading, signalled)


def _report(descriptor: int | None, text: str) -> None:
    if descriptor is None:
        print(text if text != "ready" else "sublet broker: ready", file=sys.stderr, flush=True)
        return
    with contextlib.suppress(OSError):  # Whoever wanted to know may have gone.
        os.write(descriptor, text.encode())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
