"""A program that holds more of a device than it is charged for takes it from the others."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.messages import Snapshot


def _broker(snapshot: Snapshot) -> Iterator[Seen]:
    for row in snapshot.leases:
        if row.over:
            yield Seen(words=(f"#{row.job} {row.name}", str(row.job)), text=row.device)


RULE = Rule(
    id="lease-overrun",
    severity="warning",
    sentence="{A job} uses more memory than it is charged for.",
    fix="`sublet explain {1}` shows what its lease rests on; run it with a larger --memory, or on "
    "a "
    "GPU with --fence.",
    broker=_broker,
)
