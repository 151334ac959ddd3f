"""Without a warm process every program pays for the import of TensorFlow."""

from collections.abc import Iterator

from sublet.doctor.rule import Rule, Seen
from sublet.wire.messages import Snapshot


def _broker(snapshot: Snapshot) -> Iterator[Seen]:
    for row in snapshot.nurseries:
        if row.state.startswith("off"):
            why = row.state.removeprefix("off").lstrip(" :,") or "the nursery is off"
            yield Seen(words=(why,), text=row.python)


RULE = Rule(
    id="nursery-off",
    severity="warning",
    sentence="Programs start cold, three seconds later than they could: {why}.",
    fix="Mend what is named there; `sublet down` and the next `sublet run` try it again.",
    broker=_broker,
)
