"""A device that cannot be read, or that the driver has given up."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.messages import Snapshot


def _broker(snapshot: Snapshot) -> Iterator[Seen]:
    for row in snapshot.devices:
        if row.fault:
            yield Seen(words=(row.device.id, row.fault), text=row.device.name)


RULE = Rule(
    id="device-unusable",
    severity="error",
    sentence="{The device} cannot be used: {why}.",
    fix="Look at `nvidia-smi`; a card that has fallen off the bus needs a restart of the machine.",
    broker=_broker,
)
