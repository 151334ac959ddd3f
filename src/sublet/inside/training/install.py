"""Puts steps that split batches where Keras makes its own: in programs that were started with
`--on-oom split`, and for models that were given to `sublet.fit`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from .. import hook
from ..current_lease import current, say
from . import array_rows, checks, loss_parts
from .replicas import Replicas
from .steps import LossStep, PredictStep

_chosen: weakref.WeakKeyDictionary[Any, Replicas | None] = weakref.WeakKeyDictionary()
"""Models that are split, whatever the lease says, and who computes their batches."""
_exact: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of them that are split only where that gives the same."""
_BACKEND = "keras.src.backend.tensorflow.trainer"


def install() -> None:
    """Patch Keras if this program's batches are to be split: now if it is imported, else as soon as
    it is. Called when the runtime has just started."""
    lease = current()
    if lease is not None and lease.splits:
        hook.when_imported("keras", _apply)
        hook.when_imported("tf_keras", _apply_to_keras_2)


def choose(model: Any, replicas: Replicas | None = None, exact: bool = False) -> None:
    """Split the batches of this model, among these replicas, perhaps only where that gives the
    same. Raises TypeError if it is not one that can be."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    if not isinstance(model, TensorFlowTrainer):
        raise TypeError(f"{type(model).__name__} is not a model of Keras 3 on TensorFlow")
    _patch(TensorFlowTrainer)
    if (model in _chosen, _chosen.get(model), model in _exact) != (True, replicas, exact):
        _chosen[model] = replicas
        (_exact.add if exact else _exact.discard)(model)
        forget_functions(model)


def forget_functions(model: Any) -> None:
    """Have Keras make the functions of the model anew."""
    model.train_function = model.test_function = model.predict_function = None


def _apply() -> None:
    try:
        import keras

        if keras.backend.backend() != "tensorflow":
            say(f"batches are not split: Keras runs on {keras.backend.backend()}")
            return
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

        _patch(TensorFlowTrainer)
    except (ImportError, AttributeError) as wrong:
        say(f"batches are not split: this Keras is not known here ({wrong})")


def _apply_to_keras_2() -> None:
    say("batches of tf_keras (Keras 2) are not split: --on-oom split needs Keras 3")


def _patch(trainer: Any) -> None:
    if getattr(trainer, "_sublet", False):
        return
    loss_parts.install()
    array_rows.install()
    trainer._sublet = True
    train, test = trainer.make_train_function, trainer.make_test_function
    predict = trainer.make_predict_function

    def with_loss(original: Callable[..., Any], name: str, step: str, trains: bool) -> Any:
        @functools.wraps(original)
        def make(self: Any, force: bool = False) -> Any:
            made = getattr(self, name) is not None and not force
            if made or not _splits(self) or _refused(self, step):
                return original(self, force)
            steps = LossStep(self, trains, _chosen.get(self), _is_exact(self))
            setattr(self, name, steps.__call__)
            return None

        return make

    @functools.wraps(predict)
    def make_predict_function(self: Any, force: bool = False) -> Any:
        made = self.predict_function is not None and not force
        predict(self, force)
        if not made and _splits(self) and not _refused(self, "predict_step"):
            self.predict_function = PredictStep(self, self.predict_function).__call__

    trainer.make_train_function = with_loss(train, "train_function", "train_step", True)
    trainer.make_test_function = with_loss(test, "test_function", "test_step", False)
    trainer.make_predict_function = make_predict_function


def _splits(model: Any) -> bool:
    lease = current()
    return model in _chosen or (lease is not None and lease.splits)


def _is_exact(model: Any) -> bool:
    lease = current()
    return model in _exact or (lease is not None and lease.exact)


def _refused(model: Any, step: str) -> bool:
    """Whether the model cannot be split; says why."""
    why = checks.refusal(model, step, own=step != "predict_step")
    if why:
        say(f"{why}: its batches are not split")
    return bool(why)
