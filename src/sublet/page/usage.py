"""The devices' memory over time, as the page draws it."""

import contextlib

from msgspec import Struct

from sublet.client.connection import ANSWERS_WITHIN, connect
from sublet.errors import BrokerGone
from sublet.home import Home
from sublet.page.job_rows import shown_event, shown_name
from sublet.wire.messages import AskUsageHistory, UsageHistory
from sublet.wire.rows import LeaseEventRow, UsageRow


class Usage(Struct, frozen=True):
    """Rows and events after a moment, with the names of their jobs."""

    began: float
    at: float
    devices: dict[str, tuple[UsageRow, ...]]
    events: tuple[LeaseEventRow, ...]
    names: dict[int, str]


def read_usage_since(home: Home, since: float) -> Usage | None:
    """What the broker that runs has recorded after a moment; None if none does."""
    with contextlib.suppress(OSError, BrokerGone):
        connection = connect(home)
        if connection is None:
            return None
        with contextlib.closing(connection):
            connection.frames.sock.settimeout(ANSWERS_WITHIN)
            connection.send(AskUsageHistory(since=since))
            reply = connection.receive()
        if isinstance(reply, UsageHistory):
            return Usage(
                reply.began,
                reply.at,
                reply.devices,
                tuple(map(shown_event, reply.events)),
                {number: shown_name(name) for number, name in reply.names.items()},
            )
    return None
