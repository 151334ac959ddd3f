"""The ways to train models of one architecture in one process."""

from __future__ import annotations

from typing import Any

from .serial import Serial


def serial(models: list[Any]) -> Any:
    """One after the other."""
    return Serial(models)


def fused(models: list[Any]) -> Any:
    """As one; raises CannotStack for models that do not allow that."""
    raise NotImplementedError
