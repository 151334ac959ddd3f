"""Whether a program ran out of memory, judged by the files that it left: usage files, `oom-*.json`
and the allocator's dumps. A program that crashed may have left anything.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from . import attempt_files, usage_file

PREFIX = "oom-"
_LARGEST_RECORD = 64 * 1024
_SHORTEST_WAIT, _LONGEST_WAIT = 9.5, 20.0
"""Seconds between the first try of an allocation that fails and its last one: TensorFlow gives up
after ten, or somewhat later on a busy machine."""


@dataclasses.dataclass(frozen=True)
class OomEvidence:
    """`uncaught`: an out-of-memory error ended a thread or the program. `unheard`: an allocation
    failed for good after the last error that Python has seen, as before a segmentation fault for
    lack of memory. `refused`: it was the driver of a GPU that had no more, and not the lease.
    `holders`: who held what of that GPU then. None means unknown."""

    failures: int
    asked: int | None
    limit: int | None
    peak: int | None
    message: str | None
    uncaught: bool
    unheard: bool
    refused: bool = False
    holders: tuple[tuple[int, str, int], ...] = ()
    siblings: str = ""
    """Who else of the program's processes held memory then, and how much."""


def read_evidence(directory: str) -> OomEvidence:
    processes = usage_file.read_usage(directory)
    records = _records(directory)
    # The error that ended the program, else the latest.
    fatal = max(records, key=lambda r: (r["uncaught"], r["time"]), default=None)
    heard = max((r["time"] for r in records), default=0.0)
    counted = max(sum(process.failures for process in processes), len(records))
    unheard = _failed_at(directory) > heard
    return OomEvidence(
        failures=counted + unheard,
        asked=_known([fatal["asked"]] if fatal else [process.asked for process in processes]),
        limit=_known([process.limit for process in processes] + [r["limit"] for r in records]),
        peak=_known([usage_file.tree_peak(processes)] + [r["peak"] for r in records]),
        message=fatal["message"] if fatal else None,
        uncaught=any(r["uncaught"] for r in records),
        unheard=unheard,
        refused=bool(fatal and fatal["refused"]) and not unheard,
        holders=fatal["holders"] if fatal else (),
        siblings=fatal["siblings"] if fatal else "",
    )


def _records(directory: str) -> list[dict[str, Any]]:
    records = []
    for name in _names(directory):
        if not (name.startswith(PREFIX) and name.endswith(".json")):
            continue
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                record = json.loads(file.read(_LARGEST_RECORD))
            records.append(
                {
                    "message": str(record["message"]),
                    "asked": int(record["asked"]),
                    "limit": int(record["limit"]),
                    "peak": int(record["peak"]),
                    "uncaught": record["uncaught"] is True,
                    "time": float(record["time"]),
                    "refused": record.get("refused") is True,
                    "holders": tuple(
                        (int(pid), str(name)[:64], int(size))
                        for pid, name, size in record.get("holders", ())
                    ),
                    "siblings": str(record.get("siblings", "")),
                }
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return records


def _failed_at(directory: str) -> float:
    """When the last allocation failed for good, by what the allocator has left; 0.0 if none did.

    It leaves a dump with each try. One that failed has one from its first try and one from its
    last. One that succeeded meanwhile, because the lease was raised or another thread freed memory,
    has none from so much later.
    """
    by_process: dict[int | None, list[float]] = {}
    for name in _names(directory):
        if (time := attempt_files.dump_time(name)) is not None:
            by_process.setdefault(attempt_files.dumped_by(name), []).append(time)
    failed = 0.0
    for times in by_process.values():
        if len(times) >= attempt_files.KEPT_DUMPS:
            failed = max(failed, *times)  # Its first try may be among those that were removed.
        for last in times:
            if any(_SHORTEST_WAIT <= last - first <= _LONGEST_WAIT for first in times):
                failed = max(failed, last)
    return failed


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _known(numbers: list[int]) -> int | None:
    return max(numbers, default=0) or None
