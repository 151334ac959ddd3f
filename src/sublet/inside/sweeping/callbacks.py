"""Keras callbacks of single trials, called at the epochs of a training that may be of many."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ..training.refused import Refused


class TrialCallbacks:
    """The callbacks of one trial. Only hooks of epochs and of the whole training are called."""

    def __init__(self, callbacks: Sequence[Any], model: Any, epochs: int) -> None:
        self._callbacks = list(callbacks)
        self._model = model
        for callback in self._callbacks:
            callback.set_params({"epochs": epochs, "steps": None, "verbose": 0})
            callback.set_model(model)
        model.stop_training = False
        self._each("on_train_begin")

    def epoch_begins(self, epoch: int) -> None:
        """Before an epoch, counted from 1."""
        self._each("on_epoch_begin", epoch - 1)

    def epoch_ended(self, epoch: int, logs: dict[str, float]) -> bool:
        """After it, with the weights in the model; whether the trial goes on."""
        self._each("on_epoch_end", epoch - 1, logs)
        return not self._model.stop_training

    def end(self) -> None:
        """The trial ends: early stopping may put its best weights back."""
        self._each("on_train_end")

    def best_epoch(self) -> int | None:
        """The epoch whose weights early stopping has put back; None if it has not."""
        for callback in self._callbacks:
            if getattr(callback, "restore_best_weights", False) and getattr(
                callback, "best_weights", None
            ):
                return int(callback.best_epoch) + 1
        return None

    def _each(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)


def of_trial(given: Any, trial: Any) -> list[Any]:
    """The callbacks of one trial: what a function returns for it, or copies of those in a list."""
    if given is None:
        return []
    made = given(trial) if callable(given) and not hasattr(given, "on_epoch_end") else given
    if hasattr(made, "on_epoch_end"):
        made = [made]
    if not isinstance(made, list | tuple) or not all(hasattr(one, "on_epoch_end") for one in made):
        raise Refused(
            f"callbacks gives {type(made).__name__} for a trial.",
            "Give a list of Keras callbacks, or a function of a trial that returns one.",
        )
    return list(made) if made is not given else [copy.deepcopy(one) for one in made]


def hooks_of_batches(callbacks: Sequence[Any]) -> list[str]:
    """The names of callbacks that want to be called for each batch, which a sweep does not do."""
    import keras

    base: Callable[..., Any] = keras.callbacks.Callback.on_train_batch_end
    own = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    return sorted(
        {
            type(one).__name__
            for one in callbacks
            if type(one).on_train_batch_end is not base and not isinstance(one, own)
        }
    )
