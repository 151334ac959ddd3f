"""`sublet.fit`: Keras' `fit`, for batches that may not fit."""

import importlib
import os
import sys
from typing import Any

from sublet.errors import BadRequest


def fit(model: Any, *args: Any, **options: Any) -> Any:
    """Train a Keras 3 model like `model.fit`, with the same arguments and the same result.

    A batch that does not fit the lease of this process is computed in micro-batches, which are as
    large as fit. So are the batches of this model's `evaluate` and `predict` from then on.
    """
    try:
        importlib.import_module(f"{_inside()}.training.install").choose(model)
    except (ImportError, TypeError, AttributeError) as wrong:
        raise BadRequest(
            f"sublet.fit cannot train this: {wrong}.",
            "It takes a compiled model of Keras 3 with TensorFlow; call the model's own `fit` "
            "for others.",
        ) from None
    return model.fit(*args, **options)


def _inside() -> str:
    """The package that holds this process to its lease. In a program that was started by Sublet it
    has a name of its own, as it may be of another version than the `sublet` that is installed."""
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if last == "measure" and getattr(module, "_sampled_pid", 0) == os.getpid():
            return package
    return "sublet.inside"
