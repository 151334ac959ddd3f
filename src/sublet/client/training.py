"""`sublet.fit`: Keras' `fit`, for batches that may not fit and trainings that are interrupted."""

import importlib
import os
import sys
from typing import Any

from sublet.errors import BadRequest


def fit(
    model: Any,
    *args: Any,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    strategy: str | None = None,
    precision: str | None = None,
    **options: Any,
) -> Any:
    """Train a Keras 3 model like `model.fit`, with the same arguments and the same result.

    A batch that does not fit the lease of this process is computed in micro-batches, which are as
    large as fit. So are the batches of this model's `evaluate` and `predict` from then on.

    With `checkpoint`, a directory, the training is saved there after each epoch, every
    `checkpoint_every` steps, and on SIGTERM, after which the program exits with 42: the queue then
    starts it again. The next call goes on from there, and ends as if nothing had happened.

    `strategy` is "mirrored", for several devices, or "multiworker", for the tasks of `sublet
    launch`; the weights are those of one device. A multiworker needs, in place of the model, the
    function that builds it, because a cluster is joined before TensorFlow starts; the History that
    is returned has the model. `precision` is "mixed_float16" or "mixed_bfloat16".
    """
    _check(checkpoint, checkpoint_every)
    inside = importlib.import_module(f"{_inside()}.training.fit")
    try:
        return inside.fit(
            model,
            args,
            options,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            checkpoint_every=checkpoint_every,
            strategy=strategy,
            precision=precision,
        )
    except inside.Refused as why:
        raise BadRequest(why.message, why.hint) from None


def _check(checkpoint: str | os.PathLike[str] | None, every: int | None) -> None:
    if checkpoint is not None and not os.fspath(checkpoint):
        raise BadRequest("checkpoint names no directory.", 'Give one, such as "run1/".')
    if every is None:
        return
    if every < 1:
        raise BadRequest(f"checkpoint_every is {every}.", "Give a number of steps.")
    if checkpoint is None:
        raise BadRequest("checkpoint_every needs a directory.", 'Add checkpoint="run1/".')


def _inside() -> str:
    """The package that holds this process to its lease. In a program that was started by Sublet it
    has a name of its own, as it may be of another version than the `sublet` that is installed."""
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if last == "measure" and getattr(module, "_sampled_pid", 0) == os.getpid():
            return package
    return "sublet.inside"
