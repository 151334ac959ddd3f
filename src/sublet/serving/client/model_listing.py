"""Asking all engines of this user what they have."""

from typing import Any

from sublet.errors import ServingError
from sublet.serving.client import engine_clients, notices
from sublet.serving.control.engine_supervisor import row
from sublet.serving.metrics import Row

_PATIENCE = 5.0
"""Seconds for an engine to answer."""


def roll_call() -> list[Row]:
    """All versions that some engine knows, or some server cannot serve, by name; engines that do
    not answer are left out."""
    rows: list[Row] = []
    for path, line in engine_clients.open_all():
        try:
            told: Any = line.ask({"ask": "models"}, _PATIENCE)
            rows += [row(one, path.stem, str(one.get("device") or "")) for one in told]
        except ServingError:
            continue
        finally:
            line.close()
    known = {(one.model, one.version) for one in rows}
    rows += [
        Row(one.model, one.version, state="failed", error=one.error)
        for one in notices.read()
        if (one.model, one.version) not in known
    ]
    return sorted(rows, key=lambda one: (one.model, one.version))
