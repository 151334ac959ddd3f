"""The terms of a lease, as the environment variable SUBLET_LEASE carries them to a program."""

from __future__ import annotations

import dataclasses
import json

VARIABLE = "SUBLET_LEASE"

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Card:
    """One of the devices of a lease, and the most that may be used of it."""

    device: str
    uuid: str | None
    ceiling: int
    capacity: int

    @property
    def ceiling_mib(self) -> int:
        """The ceiling in whole MiB, as TensorFlow takes it; never above the ceiling, never zero."""
        return max(1, self.ceiling // MIB)


@dataclasses.dataclass(frozen=True)
class LeaseTerms:
    """At most `ceiling` bytes of one device, for one attempt of one job. A job with several GPUs
    has such a lease on each."""

    job: int
    attempt: int
    token: str
    device: str
    kind: str
    uuid: str | None
    ceiling: int
    capacity: int
    dir: str
    roomy: bool = False
    """Whether it exceeds a measured peak by so much that the allocator wastes nothing."""
    most: int = 0
    """What the ceiling may be raised to while the program runs; 0 for one that is never raised."""
    chosen: bool = False
    """Whether the user has named the device, and so wants the program there or nowhere."""
    more: tuple[Card, ...] = ()
    """The other GPUs of a job with several, in the order in which its program sees them."""
    fence: str = ""
    """The directory of the library that holds all of the program on a GPU; empty without one."""
    splits: bool = False
    """Whether Keras' batches are split into micro-batches where they do not fit."""
    exact: bool = False
    """Whether they are split only where that gives the same, to rounding."""
    found: str = ""
    """The file for the sizes of micro-batches that were found for this program; empty for none."""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "gpu"):
            raise ValueError(f"kind is {self.kind!r}, not cpu or gpu")
        if self.ceiling <= 0:
            raise ValueError(f"ceiling is {self.ceiling}")

    @property
    def ceiling_mib(self) -> int:
        """The ceiling in whole MiB, as TensorFlow takes it; never above the ceiling, never zero."""
        return self.cards[0].ceiling_mib

    @property
    def cards(self) -> tuple[Card, ...]:
        """All devices of the lease, in the order in which the program sees them."""
        return (Card(self.device, self.uuid, self.ceiling, self.capacity), *self.more)

    @property
    def devices(self) -> str:
        """The names of its devices, for messages."""
        return ", ".join(card.device for card in self.cards)

    @property
    def uuids(self) -> str | None:
        """What CUDA_VISIBLE_DEVICES is set to; None where a device has no UUID."""
        known = [card.uuid for card in self.cards if card.uuid is not None]
        return ",".join(known) if len(known) == len(self.cards) else None

    @property
    def elastic(self) -> bool:
        """Whether the ceiling may be raised while the program runs."""
        return self.most > self.ceiling

    @property
    def on_gpu(self) -> bool:
        return self.kind == "gpu"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> LeaseTerms:
        """Fields that a newer Sublet adds are ignored; a missing or odd one is a ValueError."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        try:
            return cls(
                job=int(fields["job"]),
                attempt=int(fields["attempt"]),
                token=str(fields["token"]),
                device=str(fields["device"]),
                kind=str(fields["kind"]),
                uuid=None if fields.get("uuid") is None else str(fields["uuid"]),
                ceiling=int(fields["ceiling"]),
                capacity=int(fields["capacity"]),
                dir=str(fields["dir"]),
                roomy=fields.get("roomy") is True,
                most=int(fields.get("most", 0)),
                chosen=fields.get("chosen") is True,
                more=tuple(_card(one) for one in fields.get("more", ())),
                fence=str(fields.get("fence", "")),
                splits=fields.get("splits") is True,
                exact=fields.get("exact") is True,
                found=str(fields.get("found", "")),
            )
        except KeyError as missing:
            raise ValueError(f"{missing} is missing") from None
        except TypeError as odd:
            raise ValueError(str(odd)) from None


def _card(fields: dict[str, object]) -> Card:
    uuid = fields["uuid"]
    ceiling, capacity = int(str(fields["ceiling"])), int(str(fields["capacity"]))
    if ceiling <= 0:
        raise ValueError(f"ceiling is {ceiling}")
    return Card(str(fields["device"]), None if uuid is None else str(uuid), ceiling, capacity)
