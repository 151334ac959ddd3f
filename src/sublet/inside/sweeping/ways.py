"""The ways to train models of one architecture in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..stacks import checks
from ..stacks.batches import Batches
from ..stacks.group import serial as one_by_one
from ..stacks.group import stacks
from ..stacks.trainer import CannotStack
from .serial import Fit

Make = Callable[[list[Any], Batches], Any]
"""Makes a trainer of models; the batches are such as those that it will get."""


def serial(models: list[Any], batches: Batches) -> Any:
    """One after the other; a cohort of such models has one."""
    try:
        checks.check(models)
    except CannotStack:
        (model,) = models
        return Fit(model)
    return one_by_one(models)


def fused(most: int | None = None) -> Make:
    """As one, or in stacks of `most`; raises CannotStack for models that do not allow that."""
    return lambda models, batches: stacks(models, batches, most)
