"""Asking all engines of this user what they have."""

from typing import Any

from sublet.channel import port
from sublet.channel.line import Line
from sublet.errors import ServingError
from sublet.home import Home
from sublet.serving.metrics import Row
from sublet.serving.slots import row

_PATIENCE = 5.0
"""Seconds for an engine to answer."""


def roll_call() -> list[Row]:
    """All versions that some engine knows, by name; engines that do not answer are left out."""
    rows: list[Row] = []
    for path in sorted((Home.find().path / "engines").glob("*.sock")):
        try:
            line = Line(port.connect(str(path)))
        except ServingError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                # An engine listens before its socket has this name, so this one was killed.
                path.unlink(missing_ok=True)
            continue
        try:
            told: Any = line.ask({"ask": "models"}, _PATIENCE)
            rows += [row(one, path.stem, str(one.get("device") or "")) for one in told]
        except ServingError:
            continue
        finally:
            line.close()
    return sorted(rows, key=lambda one: (one.model, one.version))
