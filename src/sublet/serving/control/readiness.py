"""Whether models can be called now: what those who look after a server ask. Pure."""

from collections.abc import Collection

from sublet.serving.catalogue import Catalogue, State, Version


def unready(catalogue: Catalogue, silent: Collection[str]) -> str:
    """Why not all models can be called, empty if they can. Models that failed do not count: others
    are served without them. `silent` are the sockets of engines that give no answers."""
    for model in catalogue.models.values():
        there = [one for one in model.versions.values() if one.state is State.AVAILABLE]
        if any(not answers(one, silent) for one in there):
            return "An engine does not answer, or is being started again."
        coming = {State.START, State.LOADING}
        if not there and any(one.state in coming for one in model.versions.values()):
            return "A model is not loaded yet."
    return ""


def answers(version: Version, silent: Collection[str]) -> bool:
    """Whether some engine that has this version gives answers."""
    return any(engine not in silent for engine in version.engines)
