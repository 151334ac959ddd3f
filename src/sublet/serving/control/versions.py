"""Which versions of a model are wanted, and what to do about it. Pure: no I/O, no clock.

A new version is loaded before the old one is dropped, and a version that cannot be loaded never
costs one that works.
"""

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.control.config_files import All, Latest, Policy, Specific

_ENDED_KEPT = 8
"""How many ended versions of a model are still listed."""


class VersionPlan(Struct, frozen=True):
    """The next steps for one model: first `load`, oldest first, and then plan again."""

    load: tuple[int, ...] = ()
    move: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.load or self.move or self.drop)


def choose(policy: Policy, found: Mapping[int, str]) -> dict[int, str]:
    """Those of the found versions that the policy wants; at least one, if it can."""
    match policy:
        case Latest(count):
            numbers = sorted(found)[-max(count, 1) :]
        case All():
            numbers = sorted(found)
        case Specific(wanted):
            numbers = [number for number in sorted(found) if number in wanted]
    return {number: found[number] for number in numbers}


def plan(
    model: Model | None, wanted: Mapping[int, str], astray: Collection[int] = ()
) -> VersionPlan:
    """What to do so that the wanted versions are served, and no others. Those that are `astray`
    are not where they are wanted.

    A version that was dropped is loaded anew when it is wanted again. Versions that failed are in
    END and stay there: whoever wants them tried again forgets them.
    """
    known = {} if model is None else model.versions
    load = tuple(
        number
        for number in sorted(wanted)
        if (one := known.get(number)) is None
        or one.state is State.START
        or (one.state is State.END and not one.error)
    )
    served = {number for number, one in known.items() if one.state is State.AVAILABLE}
    unwanted = tuple(sorted(served - wanted.keys()))
    # As long as nothing that is wanted works, what works is kept.
    drop = unwanted if not wanted or served & wanted.keys() else ()
    return VersionPlan(load, tuple(sorted(served & wanted.keys() & {*astray})), drop)


def put(catalogue: Catalogue, version: Version) -> Catalogue:
    """The catalogue with this version as it is now."""
    model = catalogue.models.get(version.model) or Model(version.model)
    versions = {**model.versions, version.number: version}
    ended = [n for n, one in versions.items() if one.state is State.END and not one.error]
    for number in ended[:-_ENDED_KEPT]:
        del versions[number]
    return with_model(catalogue, replace(model, versions=versions))


def forget(catalogue: Catalogue, name: str, number: int) -> Catalogue:
    """The catalogue without this version."""
    model = catalogue.models.get(name)
    if model is None or number not in model.versions:
        return catalogue
    versions = {n: one for n, one in model.versions.items() if n != number}
    return with_model(catalogue, replace(model, versions=versions))


def with_model(catalogue: Catalogue, model: Model) -> Catalogue:
    """The catalogue with this model as it is now."""
    return Catalogue({**catalogue.models, model.name: model})


def without_model(catalogue: Catalogue, name: str) -> Catalogue:
    """The catalogue without this model."""
    return Catalogue({n: one for n, one in catalogue.models.items() if n != name})


def check_labels(
    catalogue: Catalogue, name: str, labels: Mapping[str, int], allow_unavailable: bool
) -> None:
    """Refuse a label on a version that cannot be called. `allow_unavailable` lets a label that
    is new, or does not move, wait for its version."""
    model = catalogue.models.get(name) or Model(name)
    for label, number in labels.items():
        version = model.versions.get(number)
        if version is not None and version.state is State.AVAILABLE:
            continue
        if allow_unavailable and model.labels.get(label, number) == number:
            continue
        raise ServingError(
            f"Request to assign label to version {number} of model {name}, "
            "which is not currently available for inference",
            Code.FAILED_PRECONDITION,
        )
