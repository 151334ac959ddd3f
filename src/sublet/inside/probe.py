"""A probe: a short run of a program, to see what a full one will need.

In a probe Keras trains a few steps, batches are smaller, what TensorFlow and Keras save goes to a
scratch directory, and the program is ended after a while. Files that a program writes by itself are
not redirected, so a probe is only made on request. Never raises into the program.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..formats.probe import ProbeNotes, ProbeOrder
from . import measure

EPOCHS = 2
STEPS = 3
"""The first step makes the optimizer's variables; by the third, data read ahead has arrived."""

_KERAS_BATCH = 32
_WRITERS = ("ModelCheckpoint", "BackupAndRestore", "TensorBoard", "CSVLogger", "RemoteMonitor")


_installed_pid = 0


def install() -> None:
    """Begin to probe if this run is a probe. Called when the runtime has just started."""
    global _installed_pid
    order = ProbeOrder.from_environ()
    if order is None or _installed_pid == os.getpid():
        return
    _installed_pid = os.getpid()
    try:
        _Probe(order).install()
    except Exception as wrong:
        sys.stderr.write(f"sublet: the probe could not be installed: {wrong!r}\n")


class _Probe:
    def __init__(self, order: ProbeOrder) -> None:
        self.order = order
        self.notes = ProbeNotes()
        self.redirected: dict[str, str] = {}
        """The scratch path of each path that the program has saved to."""

    def install(self) -> None:
        import tensorflow as tf

        timer = threading.Timer(self.order.seconds, self._stop)
        timer.daemon = True
        timer.start()
        self._patch_data(tf)
        for name in ("keras", "tf_keras"):
            if name in sys.modules:
                self._patch_keras(sys.modules[name])
        self._patch_saving(tf)
        self.notes.write(self.order.directory)

    def smaller(self, batch: int) -> int:
        """A share of the batch, at least one."""
        tried = max(1, round(batch * self.order.share))
        if batch > self.notes.full:
            self.notes.full, self.notes.tried = batch, tried
            self.notes.write(self.order.directory)
        return tried

    def _stop(self) -> None:
        """End the process at once, so that the program saves nothing on its way out."""
        usage = measure.writer()
        if usage is not None:
            usage.note_usage()
            self.notes.peak = usage.reading.peak
        self.notes.stopped = True
        self.notes.write(self.order.directory)
        os._exit(0)

    def _patch_data(self, tf: Any) -> None:
        for name in ("batch", "padded_batch", "ragged_batch"):
            original = getattr(tf.data.Dataset, name, None)
            if original is not None:
                setattr(tf.data.Dataset, name, self._with_batch(original))

    def _with_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(dataset: Any, batch_size: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(batch_size, int) and not _by_keras():
                batch_size = self.smaller(batch_size)
            return original(dataset, batch_size, *args, **kwargs)

        return wrapped

    def _patch_keras(self, keras: Any) -> None:
        for name in ("fit", "evaluate", "predict"):
            original = getattr(keras.Model, name, None)
            if original is not None:
                setattr(keras.Model, name, self._short(original, name == "fit"))

    def _short(self, original: Callable[..., Any], fits: bool) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            length = _length(given.arguments) if fits else None
            self._shorten(given.arguments, signature)
            if length is not None:
                self._note_length(*length)
                self._time_steps(given.arguments)
            result = original(*given.args, **given.kwargs)
            if fits:
                self._note_weights(given.arguments["self"])
            self.notes.fits += fits
            self.notes.write(self.order.directory)
            return result

        return wrapped

    def _shorten(self, given: dict[str, Any], signature: inspect.Signature) -> None:
        """Set few steps and small batches. The batches of a dataset are small already."""
        for steps in ("steps_per_epoch", "validation_steps", "steps"):
            known = steps in signature.parameters
            if known and (steps != "validation_steps" or given.get("validation_data") is not None):
                given[steps] = min(given.get(steps) or STEPS, STEPS)
        if "epochs" in signature.parameters:
            first = given.get("initial_epoch") or 0
            given["epochs"] = min(given.get("epochs") or 1, first + EPOCHS)
        if given.get("batch_size") is not None or _is_array(given.get("x")):
            given["batch_size"] = self.smaller(int(given.get("batch_size") or _KERAS_BATCH))
        if given.get("validation_batch_size") is not None:
            given["validation_batch_size"] = self.smaller(int(given["validation_batch_size"]))
        if isinstance(given.get("callbacks"), (list, tuple)):
            given["callbacks"] = [one for one in given["callbacks"] if not _writes(one)]

    def _note_length(self, epochs: int, steps: int, shortened: bool) -> None:
        """Note how long the longest training would be. A data set has more steps than it would
        have, as its batches are smaller already."""
        steps = math.ceil(steps * self.notes.share) if shortened else steps
        if epochs * steps >= self.notes.epochs * self.notes.steps:
            self.notes.epochs, self.notes.steps = epochs, steps

    def _time_steps(self, given: dict[str, Any]) -> None:
        """Note how long the quickest step takes: the first ones build graphs."""
        callbacks = given.get("callbacks")
        loaded = (sys.modules.get(name) for name in ("keras", "tf_keras"))
        known = [keras for keras in loaded if keras and isinstance(given["self"], keras.Model)]
        if not known or not isinstance(callbacks, (list, tuple, type(None))):
            return
        began = [0.0]

        def begin(*_: Any, **__: Any) -> None:
            began[0] = time.monotonic()

        def end(*_: Any, **__: Any) -> None:
            took = time.monotonic() - began[0]
            self.notes.seconds = min(self.notes.seconds or took, took)

        kind = known[0].callbacks.LambdaCallback
        timer = kind(on_train_batch_begin=begin, on_train_batch_end=end)
        given["callbacks"] = [*(callbacks or ()), timer]

    def _note_weights(self, model: Any) -> None:
        with contextlib.suppress(Exception):  # A model of the program's own may have none.
            sizes = (math.prod(one.shape) * 4 for one in model.trainable_weights)
            self.notes.weights = max(self.notes.weights, sum(sizes))

    def _patch_saving(self, tf: Any) -> None:
        """Redirect what TensorFlow and Keras save, and load it from there again."""
        places: list[tuple[Any, str, int, bool]] = []
        # The same module under two names; an import of the second takes the place of the first.
        for saved_model in (tf.saved_model, importlib.import_module("tensorflow.saved_model")):
            places += [(saved_model, "save", 1, True), (saved_model, "load", 0, False)]
        places += [
            (tf.train.Checkpoint, "save", 1, True),
            (tf.train.Checkpoint, "write", 1, True),
            (tf.train.Checkpoint, "restore", 1, False),
            (tf.train.Checkpoint, "read", 1, False),
            (tf.train.CheckpointManager, "__init__", 2, True),
            (tf.train, "latest_checkpoint", 0, False),
            (tf.compat.v1.train.Saver, "save", 2, True),
            (tf.compat.v1.train.Saver, "restore", 2, False),
            (tf.compat.v1.summary.FileWriter, "__init__", 1, True),
            (tf.summary, "create_file_writer", 0, True),
        ]
        for name in ("keras", "tf_keras"):
            keras = sys.modules.get(name)
            if keras is not None:
                model, models = keras.Model, keras.models
                places += [(model, "save", 1, True), (model, "save_weights", 1, True)]
                places += [(model, "export", 1, True), (model, "load_weights", 1, False)]
                places += [(models, "save_model", 1, True), (models, "load_model", 0, False)]
                places += [(keras.saving, "save_model", 1, True)]
                places += [(keras.saving, "load_model", 0, False)]
        for owner, name, position, saves in places:
            original = getattr(owner, name, None)
            if original is not None and not hasattr(original, "_sublet_probe"):
                wrapped = self._elsewhere(original, position, saves)
                setattr(owner, name, wrapped)

    def _elsewhere(self, original: Callable[..., Any], position: int, saves: bool) -> Any:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            words = list(args)
            if position < len(words):
                words[position] = self._path(words[position], saves)
            else:
                for name, value in kwargs.items():
                    if name in ("filepath", "path", "export_dir", "logdir", "directory"):
                        kwargs[name] = self._path(value, saves)
            return original(*words, **kwargs)

        # A function takes attributes; its type does not know them.
        wrapped._sublet_probe = True  # type: ignore[attr-defined]
        return wrapped

    def _path(self, path: Any, saves: bool) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        text = os.path.abspath(os.fspath(path))
        if text in self.redirected or text.startswith(self.order.directory):
            return self.redirected.get(text, text)
        if not saves:
            return path
        place = os.path.join(self.order.directory, f"saved-{len(self.redirected)}")
        os.makedirs(place, exist_ok=True)
        self.redirected[text] = os.path.join(place, os.path.basename(text))
        return self.redirected[text]


def _by_keras() -> bool:
    """Whether the caller is Keras, which batches arrays with a size that is small already."""
    module = str(sys._getframe(2).f_globals.get("__name__", ""))
    return module.startswith(("keras.", "tf_keras."))


def _is_array(data: Any) -> bool:
    """Whether Keras would cut this into batches by itself."""
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        return bool(data)
    return hasattr(data, "shape") and hasattr(data, "dtype")


def _length(given: dict[str, Any]) -> tuple[int, int, bool] | None:
    """How many epochs and steps were asked for, 0 if that is not known, and whether the steps are
    those of a data set."""
    try:
        data: Any = given.get("x")
        steps, shortened = given.get("steps_per_epoch") or 0, False
        if not steps and _is_array(data):
            first: Any = list(data.values()) if isinstance(data, dict) else data
            first = first[0] if isinstance(first, (list, tuple)) else first
            rows = len(first) * (1 - (given.get("validation_split") or 0.0))
            steps = math.ceil(rows / int(given.get("batch_size") or _KERAS_BATCH))
        elif not steps and hasattr(data, "cardinality"):
            steps, shortened = max(0, int(data.cardinality())), True
        epochs = (given.get("epochs") or 1) - (given.get("initial_epoch") or 0)
        return epochs, int(steps), shortened
    except (TypeError, ValueError, IndexError):
        return None  # Keras says what is wrong with it.


def _writes(callback: Any) -> bool:
    return any(kind.__name__ in _WRITERS for kind in type(callback).__mro__)
