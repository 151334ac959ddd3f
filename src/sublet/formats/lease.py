"""The lease as the program's side sees it: one environment variable.

Owns the names and meaning of its fields. Never decides: the broker has granted it already.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping

VARIABLE = "SUBLET_LEASE"

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class LeaseTerms:
    """So many bytes of one device, for one attempt of one job."""

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
    """Sized by a measured peak, with so much room that the allocator wastes nothing."""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "gpu"):
            raise ValueError(f"kind is {self.kind!r}, not cpu or gpu")
        if self.ceiling <= 0:
            raise ValueError(f"ceiling is {self.ceiling}")

    @property
    def ceiling_mib(self) -> int:
        """The ceiling in whole MiB, as TensorFlow takes it; never above the ceiling, never zero."""
        return max(1, self.ceiling // MIB)

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
            )
        except KeyError as missing:
            raise ValueError(f"{missing} is missing") from None
        except TypeError as odd:
            raise ValueError(str(odd)) from None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LeaseTerms | None:
        """The lease of this program; None when it has none, or one that cannot be read."""
        text = environ.get(VARIABLE)
        if not text:
            return None
        try:
            return cls.from_json(text)
        except ValueError as wrong:
            say(f"{VARIABLE} cannot be read ({wrong}): this program runs without a lease")
            return None


_seen: str | None = None
_current: LeaseTerms | None = None


def current() -> LeaseTerms | None:
    """The lease of this process, looked up when it is needed: a warm worker has one only after
    the fork. Once seen it stays, even when the program clears its environment."""
    global _seen, _current
    text = os.environ.get(VARIABLE)
    if text is not None and text != _seen:
        _seen, _current = text, LeaseTerms.from_environ(os.environ) or _current
    return _current


def forget() -> None:
    """This process holds no lease any more; its environment does not name one."""
    global _seen, _current
    _seen = _current = None


_said: set[str] = set()


def say(line: str) -> None:
    """One line to the program's stderr, once; a program without stderr misses nothing else."""
    if line in _said:
        return
    _said.add(line)
    try:
        sys.stderr.write(f"sublet: {line}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass
