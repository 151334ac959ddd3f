"""Keras models become SavedModels, once.

Owns the step from a `.keras` file to a SavedModel beside it in the engine's own directory. Keras is
not thread-safe while it builds and leaves much behind, so a model goes through it one time only; to
load it again after an eviction costs what a SavedModel costs.
"""

import gc
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.engine import compute_threads
from sublet.engine.model_opening import Opened
from sublet.engine.savedmodel_loading import SavedModelOpening
from sublet.errors import ServingError
from sublet.inside.isolation.build_lock import BUILD_LOCK


class KerasOpening(SavedModelOpening):
    """The opening of a `.keras` (or `.h5`) file; `cache` is a directory of the engine's own."""

    def __init__(self, path: str, options: Mapping[str, Any], cache: str) -> None:
        super().__init__(path, options)
        self._cache = cache

    def open(self) -> Opened:
        self._path = converted(self._path, self._cache)
        return super().open()


def converted(path: str, cache: str) -> str:
    """The SavedModel of a Keras file as the file is now; made if it is not there yet."""
    status = os.stat(path)
    mark = f"{os.path.realpath(path)}\0{status.st_mtime_ns}\0{status.st_size}"
    place = os.path.join(cache, hashlib.sha256(os.fsencode(mark)).hexdigest()[:32])
    with BUILD_LOCK:
        if not os.path.exists(place):
            draft = tempfile.mkdtemp(dir=cache)
            try:
                export(_loaded(path), os.path.join(draft, "model"))
                os.rename(os.path.join(draft, "model"), place)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
                # What Keras built holds memory of the pool in reference cycles.
                gc.collect()
    return place


def _loaded(path: str) -> Any:
    if not zipfile.is_zipfile(path):
        raise ServingError(
            f"{path} is empty, damaged or no Keras file. Copy it again, or save the model again "
            "with `model.save`.",
            Code.DATA_LOSS,
        )
    import keras

    compute_threads.start_eager()
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as wrong:
        raise ServingError(
            f"{path} cannot be loaded by Keras {keras.__version__}: {wrong} "
            "A model with code of its own can be served as a SavedModel: use `model.export`.",
            Code.FAILED_PRECONDITION,
        ) from wrong


def export(model: Any, place: str) -> None:
    """Write a SavedModel with one signature: the inputs by name, the outputs by name if they are
    a dictionary, else `output_0` and so on, as Keras names them."""
    import keras
    import tensorflow as tf

    if not getattr(model, "built", False) or not getattr(model, "inputs", None):
        raise ServingError(
            "The Keras model has not been built, so its inputs are not known. "
            "Call it once on data, or give it an Input layer.",
            Code.FAILED_PRECONDITION,
        )
    specs = [tf.TensorSpec(one.shape, one.dtype, name=_name(one)) for one in model.inputs]
    structure = getattr(model, "_inputs_struct", None)

    def serve(*tensors: Any) -> Any:
        inputs: Any = list(tensors) if len(tensors) > 1 else tensors[0]
        if structure is not None:
            inputs = tf.nest.pack_sequence_as(structure, tensors)
        return model(inputs, training=False)

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", serve, input_signature=specs)
    archive.write_out(place, verbose=False)


def _name(tensor: Any) -> str:
    """A name that is the same each time: Keras numbers tensors that have none."""
    name = str(tensor.name)
    if name.startswith("keras_tensor"):
        name = str(tensor._keras_history.operation.name)
    return name
