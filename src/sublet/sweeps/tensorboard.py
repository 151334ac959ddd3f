"""A metric in TensorBoard's event files."""

import contextlib
import math
from pathlib import Path

from sublet.event_file import EventFile
from sublet.sweeps.records import Logs

_VALIDATION = "validation"
"""The directory into which Keras' callback writes what it calls `val_…` elsewhere."""


def read(directory: Path, metric: str) -> list[Logs]:
    """The values of a metric, in the order of their steps. Keras' own names are understood:
    `epoch_loss` in `validation` is `val_loss`."""
    steps: dict[int, float] = {}
    for path in sorted(directory.rglob("*tfevents*")):
        validated = path.parent.name == _VALIDATION
        with contextlib.suppress(OSError):
            for scalar in EventFile(str(path)).read(math.inf):
                name = scalar.tag.removeprefix("epoch_")
                if metric in (scalar.tag, f"val_{name}" if validated else name):
                    steps[scalar.step] = scalar.value
    return [{metric: value if math.isfinite(value) else None} for _, value in sorted(steps.items())]
