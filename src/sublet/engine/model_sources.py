"""What lies at a model's path, before TensorFlow looks at it.

Owns telling a model that can be served from everything else that people leave in such places, and
saying what to do. Only looks at files; needs no TensorFlow.
"""

import os
import stat
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.engine import savedmodel_proto
from sublet.engine.savedmodel_proto import GRAPH
from sublet.errors import ServingError
from sublet.protobuf_fields import Malformed

SAVED_MODEL, KERAS, FUNCTION, TFLITE = "saved_model", "keras", "function", "tflite"

LITE = "model.tflite"
_KERAS = (".keras", ".h5", ".hdf5")
_GRAPHS = (GRAPH, "saved_model.pbtxt")
_INDEX = os.path.join("variables", "variables.index")
_MARGIN = 1 << 20
"""Bytes that any model takes, for small constants and what the allocator rounds up."""


def kind(path: str, options: Mapping[str, Any]) -> str:
    """How to load what is there. A ServingError says why it cannot be, and what would help."""
    if options.get("kind") == FUNCTION:
        # Only ever asked for by a program of the user's: it runs what is in the file.
        return FUNCTION
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise ServingError(
            f"There is no model at {path}. Check the path.", Code.NOT_FOUND
        ) from None
    except OSError as wrong:
        raise _unreadable(path, wrong) from None
    if stat.S_ISREG(mode):
        if path.endswith(_KERAS):
            return KERAS
        raise ServingError(
            f"{path} is a file, and no Keras model by its name. "
            "Name the directory of a SavedModel, or a file that ends in .keras.",
            Code.FAILED_PRECONDITION,
        )
    if options.get("prefer_tflite") and os.path.isfile(os.path.join(path, LITE)):
        if not options.get("follow_links"):
            _check_links(path)
        return TFLITE
    _check_directory(path, options)
    return SAVED_MODEL


def estimate(path: str) -> int:
    """Bytes of TensorFlow's pool that a model will take: its variables, and its graph for the
    constants in it. A guess, until it has been loaded once."""
    if not os.path.isdir(path):
        return _size(path) + _MARGIN
    total = _MARGIN
    for directory, _, names in os.walk(path):
        part = os.path.relpath(directory, path)
        for name in names:
            if part == "variables" or (part == "." and name in _GRAPHS):
                total += _size(os.path.join(directory, name))
    return total


def _size(path: str) -> int:
    """The size of a file; 0 if it is missing, which its loader will report."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _check_directory(path: str, options: Mapping[str, Any]) -> None:
    try:
        names = set(os.listdir(path))
    except OSError as wrong:
        raise _unreadable(path, wrong) from None
    if not names:
        raise ServingError(
            f"{path} is empty. Export or copy the model into it.", Code.FAILED_PRECONDITION
        )
    if not names.intersection(_GRAPHS):
        lite = any(name.endswith(".tflite") for name in names)
        code = Code.UNIMPLEMENTED if lite else Code.FAILED_PRECONDITION
        raise ServingError(_something_else(path, names), code)
    if not options.get("follow_links"):
        _check_links(path)
    if GRAPH in names:
        _check_graph(path)


def _unreadable(path: str, wrong: OSError) -> ServingError:
    return ServingError(
        f"{path} cannot be read: {wrong.strerror}. Check its permissions.", Code.PERMISSION_DENIED
    )


def _something_else(path: str, names: set[str]) -> str:
    if any(name.endswith(".tflite") for name in names):
        return (
            f"{path} holds a TensorFlow Lite model, and no SavedModel. Serve it with "
            f"--prefer_tflite_model (prefer_tflite=True in a sublet.Engine), as {LITE}."
        )
    if "export.meta" in names:
        return (
            f"{path} holds a session bundle of TensorFlow before 1.0, not a SavedModel. "
            "Load it with the TensorFlow of its time and export it with tf.saved_model."
        )
    if any(name.endswith(".meta") for name in names) or "checkpoint" in names:
        return (
            f"{path} holds a checkpoint, which has no signatures. "
            "Restore it in a program and export a SavedModel."
        )
    if any(name.endswith(_KERAS) for name in names):
        (name, *_) = sorted(name for name in names if name.endswith(_KERAS))
        return f"{path} is a directory with a Keras file in it. Name the file: {path}/{name}"
    numbers = sorted(name for name in names if name.isdigit())
    if numbers:
        return f"{path} holds versions, not a model. Name one of them: {path}/{numbers[-1]}"
    found = next((name for name in sorted(names) if name.endswith((".pb", ".pbtxt"))), None)
    if found is not None:
        return f"{path} has no {GRAPH}, but {found}: has it been renamed? Name it back."
    return f"{path} is no SavedModel: it has no {GRAPH}. Export or copy the model again."


def _check_links(path: str) -> None:
    """Nothing of a model may lie elsewhere: whoever can write to its directory could have any
    file of the server's user read out. Another version of the same model is not elsewhere."""
    root = os.path.realpath(path)
    if os.path.basename(root).isdigit():
        root = os.path.dirname(root)
    for directory, directories, files in os.walk(path):
        for name in (*directories, *files):
            one = os.path.join(directory, name)
            if not os.path.islink(one):
                continue
            target = os.path.realpath(one)
            if os.path.commonpath((root, target)) != root:
                raise ServingError(
                    f"{one} is a link that leads out of the model's directory, to {target}. "
                    "Copy the file there, or serve it with --follow_links (follow_links=True in a "
                    "sublet.Engine).",
                    Code.PERMISSION_DENIED,
                )


def _check_graph(path: str) -> None:
    try:
        graphs = savedmodel_proto.read(path)
    except Malformed as wrong:
        raise ServingError(
            f"{path}/{GRAPH} is damaged: {wrong}. Copy or export the model again.", Code.DATA_LOSS
        ) from None
    except OSError as wrong:
        raise _unreadable(f"{path}/{GRAPH}", wrong) from None
    if not os.path.exists(os.path.join(path, _INDEX)) and any(one.variables for one in graphs):
        raise ServingError(
            f"{path} has variables, but {_INDEX} is missing. "
            "Copy the whole directory again, with all that is in it.",
            Code.DATA_LOSS,
        )
