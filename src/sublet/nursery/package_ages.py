"""What is installed in the places an interpreter imports from, as far as its age shows.

A package that is installed, upgraded or removed changes the directory that it lies in. What happens
inside of a package does not, so a program's own modules and bytecode make no difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def ages(places: Iterable[str]) -> dict[str, int]:
    """When something was last installed or removed in each of them; 0 where there is nothing."""
    return {place: _changed(place) for place in places}


def _changed(place: str) -> int:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return 0
