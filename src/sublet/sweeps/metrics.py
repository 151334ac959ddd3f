"""Metrics that a program leaves: lines that it prints, a file of JSON or CSV, TensorBoard's events.

What makes no sense counts as nothing: a program may be writing just now.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sublet.sweeps import tensorboard
from sublet.sweeps.records import Logs

_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?))"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x08")
FORMATS = ("JSON (.json, .jsonl)", "CSV (.csv)", "a directory of TensorBoard events")


class Printed:
    """Finds a metric in the lines of a program: `val_loss: 0.123`, `val_loss=0.123`, Keras' own
    progress lines. Of a line that was written over, its last state counts."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._pattern = re.compile(
            rf"(?<![\w/.-]){re.escape(metric)}[\"']?\s*[:=]\s*{_NUMBER}(?![\w.])", re.IGNORECASE
        )

    def of(self, line: str) -> Logs | None:
        """The metric that a line names, if it does."""
        found = self._pattern.findall(_ESCAPES.sub("", line))
        return {self._metric: _value(found[-1])} if found else None


def in_file(path: Path, metric: str) -> list[Logs]:
    """The metrics in a file or directory, an entry for each step; empty if there is none yet."""
    try:
        if path.is_dir():
            return tensorboard.read(path, metric)
        text = path.read_text(errors="replace")
    except OSError:
        return []
    if path.suffix == ".csv":
        return _records(csv.DictReader(text.splitlines()))
    if path.suffix == ".jsonl":
        return _records(_decoded(line) for line in text.splitlines())
    document = _decoded(text)
    if isinstance(document, list):
        return _records(document)
    if isinstance(document, dict) and any(isinstance(one, list) for one in document.values()):
        return _columns(document)  # Keras' History.
    return _records([document])


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _records(rows: Iterable[Any]) -> list[Logs]:
    found = []
    for row in rows:
        if isinstance(row, Mapping) and (logs := _numbers(row)):
            found.append(logs)
    return found


def _columns(document: Mapping[str, Any]) -> list[Logs]:
    columns = {name: values for name, values in document.items() if isinstance(values, list)}
    length = max(map(len, columns.values()), default=0)
    return _records(
        {name: values[step] for name, values in columns.items() if step < len(values)}
        for step in range(length)
    )


def _numbers(row: Mapping[Any, Any]) -> Logs:
    logs: Logs = {}
    for name, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            logs[str(name)] = _value(value)
        except ValueError:
            continue
    return logs


def _value(written: int | float | str) -> float | None:
    value = float(written)
    return value if math.isfinite(value) else None
