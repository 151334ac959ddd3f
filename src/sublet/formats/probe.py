"""The order for a probe, in the environment variable SUBLET_PROBE, and the notes that it leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

VARIABLE = "SUBLET_PROBE"
_NOTES = "notes.json"


@dataclasses.dataclass(frozen=True)
class ProbeOrder:
    """How to probe: with which share of the batch, for how long, and where to leave the notes."""

    share: float
    seconds: float
    directory: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_environ(cls) -> ProbeOrder | None:
        try:
            fields = json.loads(os.environ.get(VARIABLE, ""))
            return cls(float(fields["share"]), float(fields["seconds"]), str(fields["directory"]))
        except (ValueError, KeyError, TypeError):
            return None


@dataclasses.dataclass
class ProbeNotes:
    """What a probe has found."""

    full: int = 0
    """The largest batch that the program asked for."""
    tried: int = 0
    """The batch that it got instead."""
    fits: int = 0
    stopped: bool = False
    peak: int = 0
    epochs: int = 0
    """Of the longest training, as the program asked for it."""
    steps: int = 0
    """Of one of its epochs with the full batch; 0 if that is not known."""
    seconds: float = 0.0
    """The quickest step that was tried."""
    weights: int = 0
    """Bytes of the weights that are trained."""

    @property
    def share(self) -> float:
        return self.tried / self.full if self.full else 1.0

    def write(self, directory: str) -> None:
        """Replace the notes in this directory; a disk that is full keeps the old ones."""
        path = os.path.join(directory, _NOTES)
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(self), file)
            os.replace(f"{path}.new", path)

    @classmethod
    def read(cls, directory: str) -> ProbeNotes:
        """What the last probe there has noted; empty notes if there are none."""
        try:
            with open(os.path.join(directory, _NOTES), encoding="utf-8") as file:
                return cls(**json.load(file))
        except (OSError, ValueError, TypeError):
            return cls()
