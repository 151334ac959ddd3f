"""`sublet.fit`: Keras' `fit`, for batches that may not fit and trainings that are interrupted; and
`sublet.split`, for models that do not fit."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from sublet.errors import BadRequest


def fit(
    model: Any,
    *args: Any,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    strategy: str | None = None,
    precision: str | None = None,
    exact: bool = False,
    **options: Any,
) -> Any:
    """Train a Keras 3 model like `model.fit`, with the same arguments and the same result.

    A batch that does not fit the lease of this process is computed in micro-batches, which are as
    large as fit. So are the batches of this model's `evaluate` and `predict` from then on. With
    `exact`, not those of a model for which that gives something else: BatchNormalization, Dropout.

    With `checkpoint`, a directory, the training is saved there after each epoch, every
    `checkpoint_every` steps, and on SIGTERM, after which the program exits with 42: the queue then
    starts it again. The next call goes on from there, and ends as if nothing had happened.

    `strategy` is "mirrored", for several devices, or "multiworker" or "parameter-server", for the
    tasks of `sublet launch`; the weights are those of one device. The latter two need, in place of
    the model, the function that builds it, because a cluster is joined before TensorFlow starts;
    the History that is returned has the model. `precision` is "mixed_float16" or "mixed_bfloat16".
    """
    _check(checkpoint, checkpoint_every)
    inside = importlib.import_module(f"{inside_package()}.training.fit")
    try:
        return inside.fit(
            model,
            args,
            options,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            checkpoint_every=checkpoint_every,
            strategy=strategy,
            precision=precision,
            exact=exact,
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


def split(
    model: Any,
    parts: int | None = None,
    *,
    devices: Sequence[str] | None = None,
    batch_size: int = 32,
    micro_batches: int | None = None,
    recompute: bool = False,
) -> Any:
    """Cut a functional or Sequential Keras 3 model into parts, each on a device of its own, and
    return a Keras model that trains and predicts in all of them at the same time.

    It has the weights of `model`, and computes the same. `model` may be a function that builds it:
    then it is built in the memory of the host, after logical CPUs were made if they are needed.

    :param parts: how many; without it, as many as there are GPUs, or `devices`, or 2.
    :param devices: for example `["GPU:0", "GPU:1"]`; without it, GPUs, else logical CPUs.
    :param batch_size: of the batches for which the parts shall need the same memory.
    :param micro_batches: into how many pieces a batch is cut; without it, two for each part.
    :param recompute: a part drops what it computes, and computes it again for the gradients:
        activations take the memory of one micro-batch, and a step takes a third longer.
    """
    try:
        inside = importlib.import_module(f"{inside_package()}.parts.split")
    except ImportError as wrong:
        raise BadRequest(
            f"sublet.split needs Keras 3 with TensorFlow: {wrong}.",
            "Install them: pip install tensorflow.",
        ) from None
    try:
        return inside.split(model, parts, devices, batch_size, micro_batches, recompute)
    except inside.Refused as why:
        raise BadRequest(f"sublet.split: {why.message}", why.hint) from None


def inside_package() -> str:
    """The package that holds this process to its lease. In a program that was started by Sublet it
    has a name of its own, as it may be of another version than the `sublet` that is installed."""
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if last == "measure" and getattr(module, "_sampled_pid", 0) == os.getpid():
            return package
    return "sublet.inside"
