"""What is served: models, their versions, labels and signatures, as frozen records.

The server makes it; every front end has a copy, and answers from it. Pure: no I/O, no TensorFlow.
"""

from collections.abc import Collection, Mapping
from enum import IntEnum

from msgspec import Struct, field

from sublet.channel.codes import Code, invalid_argument
from sublet.engine.savedmodel_proto import Signature
from sublet.errors import ServingError


class State(IntEnum):
    """Where a version is in its life; the numbers are TensorFlow Serving's."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


class Version(Struct, frozen=True):
    """One version of a model. AVAILABLE means that it can be called, not that it is in memory."""

    model: str
    number: int
    state: State = State.START
    code: Code = Code.OK
    error: str = ""
    engines: tuple[str, ...] = ()
    """The sockets of the engines that have it; none while they are away."""
    devices: tuple[str, ...] = ()  # Where they are, if the server uses several.
    signatures: Mapping[str, Signature] | None = None  # None: nobody has looked into the model.

    def described(self) -> Mapping[str, Signature]:
        """Its signatures. Raises ServingError while nobody has looked into the model."""
        if self.signatures is None:
            raise ServingError(
                f"The signatures of {self.model} version {self.number} are not known yet.",
                Code.UNAVAILABLE,
            )
        return self.signatures

    def answers(self, silent: Collection[str]) -> bool:
        """Whether some engine that has this version answers."""
        return any(engine not in silent for engine in self.engines)


class Model(Struct, frozen=True):
    """All versions of a model that are known, and its labels."""

    name: str
    versions: Mapping[int, Version] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)


class Catalogue(Struct, frozen=True):
    models: Mapping[str, Model] = field(default_factory=dict)

    def find(self, name: str, version: int | None = None, label: str | None = None) -> Version:
        """The version that a request means; the newest available one if it names none."""
        model = self.models.get(name)
        if label is not None:
            version = self.labelled(name, label)
        wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        if model is not None:
            ready = [v for v in model.versions.values() if v.state is State.AVAILABLE]
            if version is not None:
                ready = [v for v in ready if v.number == version]
            if ready:
                return max(ready, key=lambda v: v.number)
            known = [v for v in model.versions.values() if version in (None, v.number)]
            last = max(known, key=lambda v: v.number, default=None)
            if last is not None and last.state is State.END and last.code is Code.UNAVAILABLE:
                # It was there, and may be again: this is not the name of nothing.
                raise ServingError(last.error, Code.UNAVAILABLE)
        raise ServingError(f"Servable not found for request: {wanted}", Code.NOT_FOUND)

    def labelled(self, name: str, label: str) -> int:
        """The number of the version that has this label."""
        model = self.models.get(name)
        number = None if model is None else model.labels.get(label)
        if number is None:
            raise invalid_argument(f"Unrecognized servable version label: {label}")
        return number

    def known(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[Version]:
        """The versions whose state a request asks for, the newest first: one, or all."""
        model = self.models.get(name)
        versions = {} if model is None else model.versions
        if label is not None:
            version = self.labelled(name, label)
        if version is not None:
            if version not in versions:
                raise ServingError(
                    f"Could not find version {version} of model {name}", Code.NOT_FOUND
                )
            return [versions[version]]
        if not versions:
            raise ServingError(f"Could not find any versions of model {name}", Code.NOT_FOUND)
        return [versions[number] for number in sorted(versions, reverse=True)]

    def engines(self) -> set[str]:
        """The sockets of all engines that have a version."""
        return {
            engine
            for model in self.models.values()
            for version in model.versions.values()
            for engine in version.engines
        }

    def unready(self, silent: Collection[str]) -> str:
        """Why not all models can be called, empty if they can. Models that failed do not count:
        others are served without them. `silent` are the sockets of engines that do not answer."""
        for model in self.models.values():
            there = [one for one in model.versions.values() if one.state is State.AVAILABLE]
            if any(not one.answers(silent) for one in there):
                return "An engine does not answer, or is being started again."
            coming = {State.START, State.LOADING}
            if not there and any(one.state in coming for one in model.versions.values()):
                return "A model is not loaded yet."
        return ""
