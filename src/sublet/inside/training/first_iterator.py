"""The iterator over batches that Keras makes for `fit`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from .replicas import Replicas

Prepare = Callable[[Callable[..., Any], dict[str, Any]], Any]
"""Makes it, from Keras' own class and the options for it."""


@contextlib.contextmanager
def first_iterator(prepare: Prepare) -> Iterator[None]:
    """Have `prepare` make the first TFEpochIterator that is made in the body: that of `fit`."""
    from keras.src.backend.tensorflow import trainer

    own = trainer.TFEpochIterator

    def make(**options: Any) -> Any:
        trainer.TFEpochIterator = own
        return prepare(own, options)

    trainer.TFEpochIterator = make
    try:
        yield
    finally:
        trainer.TFEpochIterator = own


def drawn_seed(replicas: Replicas | None) -> int:
    """A seed for the order of rows, the same in all processes."""
    seed = random.randint(1, 10**9)
    return seed if replicas is None else int(replicas.agreed([seed])[0])
