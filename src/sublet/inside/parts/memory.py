"""What each part of a model takes of its device, as records and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_MIB = 1 << 20
_COLUMNS = ("device", "layers", "weights", "gradients", "optimizer", "activations", "all", "peak")


@dataclasses.dataclass(frozen=True)
class PartMemory:
    """Bytes of one part: estimated for a batch, but for the peak, which is measured."""

    device: str
    layers: tuple[str, ...]
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int | None
    """The most that TensorFlow has used of the device so far; None for logical devices of the CPU,
    which share one pool."""
    limit: int | None
    """The most that it may use there, under a lease."""

    @property
    def total(self) -> int:
        """What is estimated for all of it."""
        return self.weights + self.gradients + self.optimizer + self.activations


def table(title: str, parts: Sequence[PartMemory]) -> str:
    """A row for each part, in MiB."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for part in parts:
        sizes = (part.weights, part.gradients, part.optimizer, part.activations, part.total)
        most = "" if part.limit is None else f" of {part.limit // _MIB}"
        peak = "–" if part.peak is None else f"{part.peak / _MIB:.1f}"
        rows.append(
            (part.device, _span(part), *(f"{one / _MIB:.1f}" for one in sizes), peak + most)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [title]
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _span(part: PartMemory) -> str:
    first, last = part.layers[0], part.layers[-1]
    return first if len(part.layers) == 1 else f"{first} … {last} ({len(part.layers)})"
