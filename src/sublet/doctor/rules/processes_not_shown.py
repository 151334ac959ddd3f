"""In a container without the host's process numbers the driver does not say who holds what."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.messages import Snapshot


def _broker(snapshot: Snapshot) -> Iterator[Seen]:
    for row in snapshot.devices:
        if row.note and not row.fault:
            yield Seen(words=(f"{row.device.id}: {row.note}",), text=row.device.id)


RULE = Rule(
    id="processes-not-shown",
    severity="warning",
    sentence="{What the driver does not say}.",
    fix="Start the container with --pid=host.",
    broker=_broker,
)
