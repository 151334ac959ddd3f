"""The longest operations of a profile of TensorFlow's, read with the message that it ships."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any

_MOST = 20_000
"""So many of the longest are shown; all of them are in the profile itself."""
_LOOKED_AT = 500_000
_PLANES = ("/host:CPU", "/device:")
"""What runs: the threads of the host, and the streams of GPUs."""
_ABSOLUTE = 10**17
"""A time of the wall clock is larger than this, one from the beginning of a profile is smaller."""


def read(path: str, began_wall: int, began: int) -> list[tuple[Any, ...]]:
    """The events of operations, in the order of their times; none if this TensorFlow does not ship
    the message. `began_wall` and `began` are one moment in both clocks, that of the beginning."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError:
        return []
    with open(path, "rb") as file:
        space = xplane_pb2.XSpace.FromString(file.read())
    found = islice(_operations(space, _start(space) or began_wall), _LOOKED_AT)
    longest = heapq.nlargest(_MOST, found, key=lambda one: one[3])
    return [
        ("op", thread, name, began + at - began_wall, took)
        for thread, name, at, took in sorted(longest, key=lambda one: one[2])
    ]


def _start(space: Any) -> int:
    """When the profile began by the wall clock; 0 if it does not say."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return int(stat.uint64_value or stat.int64_value)
    return 0


def _operations(space: Any, began_wall: int) -> Iterator[tuple[str, str, int, int]]:
    """Thread, name, time by the wall clock and duration in ns of each event."""
    for plane in space.planes:
        if not plane.name.startswith(_PLANES):
            continue
        names = {key: one.display_name or one.name for key, one in plane.event_metadata.items()}
        device = plane.name.removeprefix("/device:") if plane.name != "/host:CPU" else ""
        for number, line in enumerate(plane.lines):
            # Names of threads end with a number of twenty digits.
            name = (line.display_name or line.name).partition("/")[0]
            thread = f"{device} {name} {number}".strip()
            begins = line.timestamp_ns
            if begins < _ABSOLUTE:
                begins += began_wall
            for event in line.events:
                at = begins + event.offset_ps // 1000
                yield thread, names.get(event.metadata_id, "?"), at, event.duration_ps // 1000
