"""TensorBoard's event files, as a program that is none of ours has written them."""

import time

from fuzz import scratch
from fuzz.driver import Random, Target
from sublet.event_file import EventFile
from sublet.page.curves import Curve
from support import event_files as made

_FOREVER = 1e9


def target() -> Target:
    path = scratch.directory() / "events.out.tfevents.1.host"

    def feed(data: bytes) -> None:
        # In two steps, as a reader meets a file that grows.
        path.write_bytes(data[: len(data) // 2])
        file, curve = EventFile(str(path)), Curve()
        for _ in range(2):
            for scalar in file.read(time.monotonic() + _FOREVER):
                assert 0 < len(scalar.tag) <= 200
                curve.add(scalar)
            path.write_bytes(data)
        assert list(file.read(time.monotonic() + _FOREVER)) == []
        assert all(isinstance(step, int) for step, _, _ in curve.points())

    return Target(feed, _seeds(), _make)


def _make(chance: Random) -> bytes:
    """Whole records with any event in them: what is behind good checksums."""
    seed = chance.choice(_events())
    places = [chance.randrange(len(seed)) for _ in range(chance.randrange(4))]
    data = bytearray(seed)
    for place in places:
        data[place] = chance.randrange(256)
    return made.file(bytes(data), made.event(9, made.simple("loss", 1.0)))


def _events() -> list[bytes]:
    return [
        made.event(1, made.simple("loss", 0.5), made.simple("accuracy", 0.1)),
        made.event(2, made.tensor("epoch_loss", 0.25)),
        made.event(3, made.tensor("text", 0.0, plugin="text")),
        made.event(-1, made.field(1, b"none")),
    ]


def _seeds() -> tuple[bytes, ...]:
    return made.file(*_events()), made.file(_events()[1]), made.file()
