"""What lies on the disk: models in a directory, versions of a model. It looks; it decides nothing.

A model's directory has a directory for each version, named by a whole number. A single SavedModel
or `.keras` file is a model with one version, 1 if its name is no number.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from sublet.channel.codes import Code
from sublet.engine import savedmodel_proto
from sublet.engine.savedmodel_proto import GRAPH, Signature
from sublet.errors import ServingError
from sublet.protobuf_fields import Malformed

_NUMBER = re.compile("[0-9]+")
_LARGEST = 2**63 - 1
_GRAPHS = ("saved_model.pb", "saved_model.pbtxt")
_MARKED = (
    *_GRAPHS,
    "model.tflite",
    "variables/variables.index",
    "assets.extra/tf_serving_warmup_requests",
)


class ModelDirectory(Struct, frozen=True):
    """Where a version lies, and a mark that changes when its files are replaced."""

    path: str
    mark: str


def look(base: str) -> dict[int, ModelDirectory]:
    """The versions under a model's path. Raises if there is no such path: it may come back."""
    path = Path(base)
    if is_model(path):
        number = int(path.name) if _NUMBER.fullmatch(path.name) else 1
        return {min(number, _LARGEST): ModelDirectory(str(path), _mark(path))}
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise ServingError(
            f"Could not find base path {base}: {error.strerror}. "
            "Check the path and its permissions.",
            Code.NOT_FOUND,
        ) from None
    found = {}
    for name in names:
        # Only whole numbers: what is being copied there has another name until it is complete.
        if not _NUMBER.fullmatch(name) or int(name) > _LARGEST:
            continue
        version = path / name
        if not os.path.isdir(version):
            continue
        files = sorted(version.glob("*.keras"))
        if len(files) == 1 and not is_model(version):
            version = files[0]
        found[int(name)] = ModelDirectory(str(version), _mark(version))
    return found


def check_link(base: str, path: str) -> None:
    """Refuse a version that lies elsewhere than in its model's directory. Raises ServingError."""
    if not is_below(path, (os.path.realpath(base),)):
        raise ServingError(
            f"{path} is a link that leads out of the model's directory. Copy the version there, or "
            "serve it with --follow_links.",
            Code.PERMISSION_DENIED,
        )


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Whether this is one of these directories, or leads into one. They are real paths."""
    real = os.path.realpath(path)
    return any(os.path.commonpath((root, real)) == root for root in roots)


def survey(root: str) -> dict[str, str]:
    """The models in a directory, by name, and where each is."""
    return {path.name.removesuffix(".keras"): str(path) for path in _children(Path(root))}


def is_model(path: Path) -> bool:
    """Whether this is one SavedModel, or a file of Keras. What cannot be read is neither."""
    # Not the methods of Path, which raise when permission is denied.
    if os.path.isdir(path):
        return any(os.path.isfile(path / name) for name in _GRAPHS)
    return path.suffix == ".keras" and os.path.isfile(path)


def name_of(path: Path) -> str:
    """`models/a`, `models/a/3` and `models/a.keras` are all of a model named a."""
    path = path.absolute()
    if path.name.isdecimal() and path.is_dir():
        return path.parent.name
    return path.name.removesuffix(".keras")


def has_versions(path: Path) -> bool:
    """Whether this is a directory of versions."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return any(_NUMBER.fullmatch(name) and os.path.isdir(path / name) for name in names)


def size(path: str) -> int:
    """The bytes of all files of a version."""
    files = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
    # What vanishes meanwhile, or leads nowhere, has none.
    return sum(os.path.getsize(one) for one in (path, *files) if os.path.isfile(one))


def _children(root: Path) -> Iterator[Path]:
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return
    for path in entries:
        if path.name.startswith(".") or path.name.endswith(".tmp"):
            continue
        if is_model(path) or has_versions(path):
            yield path


def _mark(path: Path) -> str:
    """Cheap, and different when files were replaced or are still being written."""
    parts = []
    for name in ("", *_MARKED):
        try:
            facts = os.stat(path / name if name else path)
        except OSError:
            continue
        parts.append(f"{facts.st_ino}.{facts.st_size}.{facts.st_mtime_ns}")
    return " ".join(parts)


def signatures(directory: str, tags: tuple[str, ...] = ("serve",)) -> dict[str, Signature] | None:
    """How the model in `directory` can be called; None if only TensorFlow can tell: it is no
    SavedModel, or is written as text. TensorFlow's own `__saved_model_init_op` is among them, as
    in TensorFlow Serving's metadata."""
    try:
        graphs = savedmodel_proto.read(directory)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise ServingError(
            f"{directory} cannot be read: {wrong.strerror}.", Code.FAILED_PRECONDITION
        ) from None
    except Malformed as wrong:
        raise ServingError(
            f"{directory}/{GRAPH} is damaged: {wrong}. Copy or export the model again.",
            Code.DATA_LOSS,
        ) from None
    for graph in graphs:
        if graph.tags == frozenset(tags):
            return graph.signatures
    return None
