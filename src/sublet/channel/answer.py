"""What comes back from an engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Answer(NamedTuple):
    """The outputs of one call, and where its time went."""

    outputs: dict[str, np.ndarray[Any, Any]]
    queued: float = 0.0
    """Seconds until its batch began."""
    computed: float = 0.0
    """Seconds that its batch took."""
    rows: int = 0
    """Rows of that batch, others' included."""
