"""What became of versions, for whoever looks at the server's terminal.

Pure. Why a version failed is said where it failed.
"""

from collections.abc import Iterator

from sublet.serving.catalogue import Catalogue, State

_Key = tuple[str, int]


def changes(before: Catalogue, after: Catalogue) -> Iterator[str]:
    """A line for each version that is served now, or not any more."""
    old, new = _served(before), _served(after)
    for model, number in sorted(new - old):
        yield f"{model} version {number} is served now."
    for model, number in sorted(old - new):
        if not _failed(after, (model, number)):
            yield f"{model} version {number} is not served any more."


def _served(catalogue: Catalogue) -> set[_Key]:
    return {
        (name, number)
        for name, model in catalogue.models.items()
        for number, version in model.versions.items()
        if version.state is State.AVAILABLE
    }


def _failed(catalogue: Catalogue, key: _Key) -> bool:
    model = catalogue.models.get(key[0])
    version = None if model is None else model.versions.get(key[1])
    return version is not None and bool(version.error)
