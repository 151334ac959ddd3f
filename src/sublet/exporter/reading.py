"""Asks the broker for its metrics. Never starts one: to be watched is no reason to run."""

import contextlib

import psutil

from sublet.client.connection import connect
from sublet.errors import InternalError, WorldError
from sublet.exporter.families import Process
from sublet.home import Home
from sublet.wire.messages import AskMetrics
from sublet.wire.metrics import Metrics

_PATIENCE = 5.0
"""Seconds; a scrape must not wait much longer."""


def read(home: Home) -> Metrics | None:
    """What the broker says; None if none runs, or it ends meanwhile. Raises WorldError if it does
    not answer."""
    try:
        if (connection := connect(home)) is None:
            return None
        with contextlib.closing(connection):
            connection.frames.sock.settimeout(_PATIENCE)
            connection.send(AskMetrics())
            reply = connection.receive()
    except TimeoutError:
        raise WorldError(f"The broker has not answered for {_PATIENCE:.0f} s.") from None
    except ConnectionError:
        return None
    if reply is not None and not isinstance(reply, Metrics):
        raise InternalError(f"The broker answered with {type(reply).__name__}.")
    return reply


def process(pid: int) -> Process | None:
    """What the broker itself takes of the machine; None if it is gone."""
    try:
        found = psutil.Process(pid)
        with found.oneshot():
            times = found.cpu_times()
            return Process(times.user + times.system, found.memory_info().rss)
    except psutil.Error:
        return None
