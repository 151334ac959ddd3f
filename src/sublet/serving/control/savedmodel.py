"""The signatures of a SavedModel, for a server that has no TensorFlow.

Owns turning what `inside.serving.saved` reads into the catalogue's records. It only describes: the
engine decides whether the model can be loaded.
"""

from sublet.channel.codes import Code
from sublet.engine import savedmodel_proto
from sublet.engine.savedmodel_proto import GRAPH
from sublet.errors import ServingError
from sublet.serving.catalogue import Signature, TensorSpec


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
    except savedmodel_proto.Malformed as wrong:
        raise ServingError(
            f"{directory}/{GRAPH} is damaged: {wrong}. Copy or export the model again.",
            Code.DATA_LOSS,
        ) from None
    for graph in graphs:
        if graph.tags == frozenset(tags):
            return {
                name: Signature(one.method, _specs(one.inputs), _specs(one.outputs))
                for name, one in graph.signatures.items()
            }
    return None


def _specs(tensors: dict[str, savedmodel_proto.TensorInfo]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(one.name, one.dtype, one.shape) for name, one in tensors.items()}
