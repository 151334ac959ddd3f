"""The variables of an optimizer of Keras."""

from __future__ import annotations

from typing import Any


def inner(optimizer: Any) -> Any:
    """The optimizer that makes the steps: of one that scales losses, the one within."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of an optimizer, those too that Keras does not count: Nadam has one."""
    from keras.src.backend import Variable

    if optimizer is None:
        return []
    counted = optimizer.variables
    known = {id(one) for one in counted}
    more = [one for one in vars(inner(optimizer)).values() if isinstance(one, Variable)]
    return [*counted, *(one for one in more if id(one) not in known)]
