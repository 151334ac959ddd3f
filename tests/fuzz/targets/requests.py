"""What clients send to the broker: frames of msgpack, with descriptors beside them.

A real broker in this process, with all its parts but workers: it hears, decides and writes down,
and starts nothing.

    how many descriptors (1 byte), the frames
"""

import os
import socket
import struct
from pathlib import Path

import msgspec

from fuzz import scratch
from fuzz.driver import Random, Target
from sublet.backends.local.backend import LocalBackend
from sublet.broker.broker import Broker
from sublet.broker.connections import ClientConnection
from sublet.broker.ledger import Ledger
from sublet.clock import SystemClock
from sublet.devices import Probe
from sublet.domain.job import JobSpec, Process
from sublet.domain.memory import Exactly
from sublet.home import Home
from sublet.reactor import Reactor
from sublet.units import GiB, MiB
from sublet.wire import PROTOCOL, messages
from support.jobs import job

_LENGTH = struct.Struct(">I")
_FRESH = 200
"""Inputs after which a broker has heard enough."""


class BrokerHarness:
    """One broker; `hear` gives it what one client sends."""

    def __init__(self, root: Path) -> None:
        home = Home(root)
        home.make()
        self._reactor = Reactor()
        ledger, probe = Ledger.open(home.ledger), Probe.open(2 * GiB)
        backend = LocalBackend(self._reactor, home)
        self._broker = Broker(self._reactor, home, ledger, probe, SystemClock(), backend)
        self._requests = self._broker.requests
        self.heard = 0

    def hear(self, data: bytes) -> None:
        self.heard += 1
        ours, theirs = socket.socketpair()
        # The broker reads what is there, so a client that sends much must not wait for it.
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = ClientConnection(self._reactor, theirs, self._requests)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            with scratch.nobody_is_hurt():
                streams = [null] * (data[0] % 6 if data else 0)
                socket.send_fds(ours, [data[1:] or b"\0"], streams)
                for _ in range(3):
                    self._turn()
                connection.close()
                self._turn()
        finally:
            os.close(null)
            ours.close()

    def _turn(self) -> None:
        """As the broker's own, but for the plan: nothing is to be started here."""
        self._reactor.call_later(0.0, lambda: None)
        self._reactor.run_once()
        self._broker.planner.plan()
        self._broker.commit()

    def is_over(self) -> bool:
        return self.heard >= _FRESH or self._broker.control.closing or self._broker.control.ending

    def close(self) -> None:
        self._broker.close()
        self._reactor.close()


def target() -> Target:
    root = scratch.directory()
    harnesses = [BrokerHarness(root / "0")]

    def feed(data: bytes) -> None:
        if harnesses[-1].is_over():
            harnesses[-1].close()
            harnesses.append(BrokerHarness(root / str(len(harnesses))))
        harnesses[-1].hear(data)

    def check() -> None:
        # Descriptors that came along and were not wanted.
        assert len(os.listdir("/proc/self/fd")) < before + 40, "descriptors were left open"

    before = len(os.listdir("/proc/self/fd"))
    return Target(feed, seeds(), make, lambda: harnesses[-1].close(), check)


def _spec(**fields: object) -> JobSpec:
    known: dict[str, object] = {"client": None, "memory": Exactly(64 * MiB), "cold": "a test"}
    return msgspec.structs.replace(job().spec, **(known | fields))


def _requests() -> list[messages.Request]:
    mine = Process(os.getpid(), 1)
    return [
        messages.Run(_spec(client=mine), "token"),
        messages.Run(_spec(client=mine), "token", messages.Under(1, "secret")),
        messages.Submit(_spec(), "a"),
        messages.Submit(_spec(after=(1,), after_ok=(2,), retries=2), "b", (0, 1, 2), 2),
        messages.LeaseInProcess(_spec(client=mine), "c"),
        messages.GiveBack(1, "token"),
        messages.Attach(1, "token"),
        messages.Signal(15),
        messages.AskStatus(),
        messages.AskJobs((1, 2)),
        messages.AskJobs(),
        messages.AskExplain(1),
        messages.AskStart(_spec(client=mine)),
        messages.AskUsageHistory(since=1.5),
        messages.AskMetrics(),
        messages.Watch((1, 2)),
        messages.JobAction("cancel", (1,)),
        messages.JobAction("pause", (1, 2)),
        messages.JobAction("retry", (1,)),
        messages.Down(),
    ]


def seeds() -> list[bytes]:
    one = [_frame(messages.encode(request)) for request in _requests()]
    alone = [b"\3" + data for data in one]
    return [*alone, b"\0" + b"".join(one[:4]), b"\3" + one[0] + one[7] + one[13]]


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def make(chance: Random) -> bytes:
    """Good msgpack with odd values in good requests."""
    odd: tuple[object, ...] = (
        *(None, True, -1, 1 << 40, (1 << 64) - 1, 1.5, float("nan"), "", "\0", "x" * 70000),
        *(b"\xff", [], [1] * 3, {}),
    )
    plain = msgspec.msgpack.decode(messages.encode(chance.choice(_requests())))
    for _ in range(chance.randrange(1, 4)):
        inside = plain
        while isinstance(inside, dict) and inside:
            field = chance.choice(sorted(inside))
            if not isinstance(inside[field], dict) or chance.random() < 0.3:
                inside[field] = chance.choice(odd)
                break
            inside = inside[field]
    plain.setdefault("protocol", PROTOCOL)
    raw = bytearray(_frame(msgspec.msgpack.encode(plain)))
    if chance.random() < 0.3:
        # Text that is not UTF-8.
        at = raw.find(b"x", chance.randrange(4, len(raw)))
        if at > 0:
            raw[at] = 0xFF
    return bytes([chance.randrange(6)]) + bytes(raw)
