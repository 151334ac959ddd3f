"""The models as the repository extension of the Open Inference Protocol lists them."""

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, State

_STATES = {
    State.START: "LOADING",
    State.LOADING: "LOADING",
    State.AVAILABLE: "READY",
    State.UNLOADING: "UNLOADING",
    State.END: "UNAVAILABLE",
}


def index(catalogue: Catalogue, ready: bool) -> list[dict[str, str]]:
    """All versions by name and number, or only those that can be called."""
    return [
        {
            "name": name,
            "version": str(number),
            "state": _STATES[version.state],
            "reason": version.error,
        }
        for name, model in sorted(catalogue.models.items())
        for number, version in sorted(model.versions.items())
        if version.state is State.AVAILABLE or not ready
    ]


def fixed() -> ServingError:
    """For a client that wants a model to be loaded or unloaded."""
    return ServingError(
        "Clients do not load and unload models here: each is loaded when it is called. To serve "
        "others, change the directory or the file that the server was started with, or, where it "
        "has --allow_reload, use tensorflow.serving.ModelService/HandleReloadConfigRequest.",
        Code.UNIMPLEMENTED,
    )
