"""What became of the calls of each version, in the words of Triton's statistics extension."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from sublet.serving.catalogue import Catalogue, State, Version

_NANO = 1e9


class Inferences(Struct):
    """The calls of one version that have gone to an engine."""

    last: int = 0
    """When one was answered last: milliseconds since 1970."""
    rows: int = 0
    batches: float = 0.0
    """Each call adds its share of its batch."""
    answered: int = 0
    answered_seconds: float = 0.0
    failed: int = 0
    failed_seconds: float = 0.0
    queued_seconds: float = 0.0
    computed_seconds: float = 0.0

    def answer(self, rows: int, batch: int, seconds: float, queued: float, computed: float) -> None:
        """Count a call that was answered: its rows, those of its batch, and its times."""
        self.last = int(time.time() * 1000)
        self.rows += rows
        self.batches += min(1.0, rows / batch) if batch else 1.0
        self.answered += 1
        self.answered_seconds += seconds
        self.queued_seconds += queued
        self.computed_seconds += computed

    def fail(self, seconds: float) -> None:
        """Count a call that failed."""
        self.failed += 1
        self.failed_seconds += seconds

    def add(self, other: "Inferences") -> None:
        """Count what another front end has counted."""
        self.last = max(self.last, other.last)
        for name in self.__struct_fields__[1:]:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Counts = Mapping[tuple[str, int], Inferences]  # By model and version.


def model_statistics(
    catalogue: Catalogue, counts: Counts, name: str, number: int | None
) -> dict[str, Any]:
    """The statistics of a version, of all versions of a model, or of all models if it is empty.

    Raises ServingError if there are none.
    """
    versions: Iterable[Version]
    if name:
        catalogue.find(name, number)
        versions = catalogue.models[name].versions.values()
    else:
        versions = [one for model in catalogue.models.values() for one in model.versions.values()]
    wanted = sorted(
        (version.model, version.number)
        for version in versions
        if version.state is State.AVAILABLE and number in (None, version.number)
    )
    return {"model_stats": [_version(*key, counts.get(key, Inferences())) for key in wanted]}


def _version(model: str, number: int, calls: Inferences) -> dict[str, Any]:
    return {
        "name": model,
        "version": str(number),
        "last_inference": calls.last,
        "inference_count": calls.rows,
        "execution_count": round(calls.batches),
        "inference_stats": {
            "success": _times(calls.answered, calls.answered_seconds),
            "fail": _times(calls.failed, calls.failed_seconds),
            "queue": _times(calls.answered, calls.queued_seconds),
            # Bringing tensors to the device and back is part of what a batch takes.
            "compute_input": _times(calls.answered, 0),
            "compute_infer": _times(calls.answered, calls.computed_seconds),
            "compute_output": _times(calls.answered, 0),
        },
        "batch_stats": [],
    }


def _times(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * _NANO)}
