"""What `sublet.fit` does: Keras' own `fit`, in micro-batches, with a strategy, a precision and
checkpoints."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from ...formats.probe import ProbeOrder
from . import checks, install
from .first_iterator import drawn_seed, first_iterator
from .precision import precision as in_precision
from .refused import Refused
from .replicas import Replicas, replicas
from .resume.position import array_batches
from .resume.run import ResumableRun


def fit(
    model: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    *,
    checkpoint: str | None,
    checkpoint_every: int | None,
    strategy: str | None,
    precision: str | None,
    exact: bool = False,
) -> Any:
    """Train a model, or what a function returns. A probe has no part in checkpoints. Raises Refused
    if that cannot be done so."""
    group = None if strategy is None else replicas(strategy)
    if callable(model) and not hasattr(model, "fit"):
        with contextlib.nullcontext() if group is None else group.building():
            model = model()
    try:
        install.choose(model, group, exact)
    except (TypeError, AttributeError, ImportError) as wrong:
        raise Refused(
            f"sublet.fit cannot train this: {wrong}.",
            "It takes a compiled model of Keras 3 with TensorFlow, or a function that returns "
            "one; call the model's own `fit` for others.",
        ) from None
    with contextlib.ExitStack() as stack:
        if group is not None:
            stack.callback(install.choose, model)
            if why := checks.refusal(model, "train_step"):
                raise Refused(
                    f"{why}: no strategy can divide its batches.", "Train it without one."
                )
        if precision is not None:
            stack.enter_context(in_precision(model, precision))
        if checkpoint is not None and ProbeOrder.from_environ() is None:
            settings = {"strategy": strategy, "precision": precision}
            run = ResumableRun(model, checkpoint, checkpoint_every, settings, group)
            return run.fit(*args, **options)
        if group is not None:
            stack.enter_context(_in_one_order(group))
        return model.fit(*args, **options)


def _in_one_order(group: Replicas) -> contextlib.AbstractContextManager[None]:
    """Have all processes take the rows of arrays in the same order."""

    def prepare(make: Callable[..., Any], options: dict[str, Any]) -> Any:
        batches, iterator = array_batches(make, options, lambda: drawn_seed(group))
        if batches is not None:
            passes = itertools.count()
            iterator._enumerate_iterator = lambda: batches.epoch(next(passes), 0, None)
        return iterator

    return first_iterator(prepare)
