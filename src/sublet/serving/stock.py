"""The models that are to be served, and their way to and from the engines.

Owns the catalogue: nobody else changes it. For each model there is at most one task that tends it,
step by step as `versions.plan` says, until what is served is what is wanted.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.errors import ServingError, SubletError
from sublet.serving import savedmodel, versions
from sublet.serving.blame import Blame, Key
from sublet.serving.catalogue import Catalogue, Model, Signature, State, Version
from sublet.serving.textproto import ModelConfig
from sublet.serving.watch import Place, look
from sublet.units import format_seconds

_SLOW = 5.0
"""Seconds after which others are loaded beside a version that takes longer, or never ends."""


class EngineLost(Exception):
    """The engine has ended while it was asked for something."""


class Host(Protocol):
    """Who has an engine for a model, and puts another in its place when it ends."""

    path: str
    """The socket of the engine; empty while there is none."""
    turn: asyncio.Lock
    """Held by whoever has it load something."""

    async def ready(self) -> None:
        """Until there is an engine."""

    async def add(
        self, name: str, number: int, path: str, options: Mapping[str, Any], suspect: float
    ) -> None:
        """Make a version known, to be loaded when it is called. `suspect`: until when it may be
        why an engine has ended, as `Blame.until`."""

    async def load(self, name: str, number: int) -> Mapping[str, Signature]:
        """Load a version that is known; its signatures. ServingError: it cannot be served."""

    async def full(self) -> bool:
        """Whether a load would put another model out of memory."""

    async def unload(self, name: str, number: int) -> None:
        """Answer what was asked of it, give its memory back, and know it no more."""


class Audience(Protocol):
    """Who has to know what is served."""

    def publish(self, catalogue: Catalogue) -> int:
        """Tell them; the number of this news."""

    async def heard(self, number: int) -> None:
        """Until no request goes to what the news before said."""


class Retries(Struct, frozen=True):
    """How often, and after how many seconds, a version that failed is tried again."""

    most: int = 5
    wait: float = 60.0


class _Failure(Struct, frozen=True):
    mark: str
    tries: int
    due: float | None
    """When to try again; None for never, unless its files change."""


class _Held(Struct, frozen=True):
    """A version that some engine has, or is to have again when it is back."""

    host: Host
    place: Place


class Stock:
    """What is served now, and what is wanted. Used in one event loop.

    `host` finds the engine for a model; `options` are those of a version at a path.
    """

    def __init__(
        self,
        host: Callable[[ModelConfig], Host],
        audience: Audience,
        options: Callable[[ModelConfig, str], dict[str, Any]],
        retries: Retries,
        tell: Callable[[str], None],
    ) -> None:
        self.catalogue = Catalogue()
        self.configs: dict[str, ModelConfig] = {}
        self._host = host
        self._audience = audience
        self._options = options
        self._retries = retries
        self._tell = tell
        self._wanted: dict[str, dict[int, Place]] = {}
        self._held: dict[Key, _Held] = {}
        self._tending: dict[str, asyncio.Task[None]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._failures: dict[Key, _Failure] = {}
        self._blame = Blame()
        self._crashes: dict[Key, int] = {}
        """How often each was put away because of the engines that it has ended."""
        self._troubles: dict[str, str] = {}

    async def replace(self, configs: Sequence[ModelConfig]) -> None:
        """Serve these models and no others; their labels count at once."""
        before, self.configs = self.configs, {config.name: config for config in configs}
        for name in self._wanted.keys() - self.configs.keys():
            self._wanted[name] = {}
            self._troubles.pop(name, None)
        for config in configs:
            model = self.catalogue.models.get(config.name) or Model(config.name)
            model = replace(model, labels=dict(config.labels))
            self.catalogue = versions.with_model(self.catalogue, model)
            old = before.get(config.name)
            if old is not None and _elsewhere(old, config):
                await self._drop_all(config.name)
        self._publish()
        await self.refresh()

    async def refresh(self) -> None:
        """Look at the disk, and begin to do what is needed."""
        for config in list(self.configs.values()):
            try:
                found = await asyncio.to_thread(look, config.base_path)
            except ServingError as error:
                # It may be a disk that is away: what is served goes on.
                self._trouble(config.name, str(error))
                continue
            if self.configs.get(config.name) is not config:
                continue
            wanted = versions.choose(config.policy, {n: one.path for n, one in found.items()})
            if wanted:
                self._troubles.pop(config.name, None)
            else:
                self._trouble(config.name, f"No version was found in {config.base_path}.")
            self._wanted[config.name] = {number: found[number] for number in wanted}
        self.retry()

    def retry(self) -> None:
        """Begin to do what is needed, as far as the disk is known."""
        for name in list(self._wanted):
            self._forgive(name)
            self._tend_soon(name)

    async def settled(self) -> None:
        """Until nothing is being done."""
        while self._tending:
            await asyncio.gather(*self._tending.values())

    def troubles(self) -> dict[str, str]:
        """Models of which nothing was found, and why."""
        return dict(self._troubles)

    def has(self, host: Host) -> bool:
        """Whether this one has, or is about to have, some version."""
        return any(held.host is host for held in self._held.values()) or bool(self._tending)

    def away(
        self, host: Host, path: str, loading: Sequence[Key], running: Sequence[Key] = ()
    ) -> None:
        """The engine of this socket has ended: its models are not to be had until it is back.

        `loading` and `running` are the versions that it was just busy with: each may be why.
        """
        culprit = self._blame.judge(host, (*loading, *running), time.monotonic())
        if culprit is not None:
            self._put_away(host, culprit, culprit in loading)
        for version in self._of(host):
            if version.engine == path:
                self._put(replace(version, engine=""))
        self._publish()

    def back_soon(self, host: Host) -> None:
        """Begin with `back`."""
        task = asyncio.create_task(self.back(host))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def back(self, host: Host) -> None:
        """There is another engine: it gets what the last one had.

        First all are made known, so that calls wait for a load and do not fail; then they are
        loaded, as long as there is room.
        """
        known: list[Version] = []
        for version in self._of(host):
            key = (version.model, version.number)
            place, config = self._held[key].place, self.configs.get(version.model)
            if config is None:
                continue  # It is about to be dropped.
            try:
                await self._add(host, config, key, place)
            except SubletError as error:
                await self._failed(host, key, place, error)
                continue
            except EngineLost:
                return
            self._put(replace(version, engine=host.path))
            known.append(version)
        self._publish()
        for version in known:
            try:
                async with host.turn:
                    if await host.full():
                        return
                    loading = await _begin(host, (version.model, version.number))
                await loading
            except ServingError as error:
                self._tell(f"{version.model} version {version.number}: {error}")
            except EngineLost:
                return

    def close(self) -> None:
        """Do nothing more."""
        for task in (*self._tending.values(), *self._returning):
            task.cancel()

    def _tend_soon(self, name: str) -> None:
        if name not in self._tending:
            task = self._tending[name] = asyncio.create_task(self._tend(name))
            task.add_done_callback(lambda _: self._tending.pop(name, None))

    async def _tend(self, name: str) -> None:
        while step := versions.plan(
            self.catalogue.models.get(name), {n: p.path for n, p in self._wanted[name].items()}
        ):
            for number in step.load:
                # What is wanted may have changed while the last one was loaded.
                place, config = self._wanted[name].get(number), self.configs.get(name)
                if place is not None and config is not None:
                    await self._load(config, number, place)
            for number in () if step.load else step.drop:
                await self._drop(name, number)
        if name not in self.configs:
            self._wanted.pop(name, None)
            self.catalogue = versions.without_model(self.catalogue, name)
            self._publish()

    async def _load(self, config: ModelConfig, number: int, place: Place) -> None:
        key = (config.name, number)
        host = self._host(config)
        crashes = self._crashes.get(key, 0)
        if crashes:
            self._blame.suspect(host, key, time.monotonic())
        self._put(Version(config.name, number, State.LOADING))
        self._publish()
        try:
            while True:
                await host.ready()
                path = host.path
                try:
                    await self._add(host, config, key, place)
                    signatures = await self._bring(host, key, place)
                    if host.path == path:
                        break  # Else the engine that knows it has ended meanwhile.
                except ServingError:
                    if host.path == path:
                        raise  # Else it was asked of an engine that does not know it.
                except EngineLost as lost:
                    if self._crashes.get(key, 0) > crashes:
                        raise ServingError(
                            f"{lost} It is not tried again until its files change.",
                            Code.INTERNAL,
                        ) from None
        except SubletError as error:
            await self._failed(host, key, place, error, self._crashes.get(key, 0) == crashes)
            return
        self._held[key] = _Held(host, place)
        self._failures.pop(key, None)
        self._put(Version(*key, State.AVAILABLE, engine=path, signatures=signatures))
        self._publish()

    async def _add(self, host: Host, config: ModelConfig, key: Key, place: Place) -> None:
        options = self._options(config, place.path)
        await host.add(*key, place.path, options, self._blame.until(key))

    async def _bring(self, host: Host, key: Key, place: Place) -> Mapping[str, Signature]:
        """Have it loaded; its signatures.

        When memory is full, one that takes nobody's place is only looked into: whoever calls it
        first has it loaded. One that takes another's place must have shown that it works.
        """
        async with host.turn:
            others = self.catalogue.models[key[0]].versions.values()
            if not any(one.state is State.AVAILABLE for one in others) and await host.full():
                seen = await asyncio.to_thread(savedmodel.signatures, place.path)
                if seen:
                    return seen
            loading = await _begin(host, key)
        if not loading.done():
            self._tell(f"{key[0]} version {key[1]} takes long to load; others go on.")
        return await loading

    async def _failed(
        self, host: Host, key: Key, place: Place, error: SubletError, again: bool = True
    ) -> None:
        self._held.pop(key, None)
        with contextlib.suppress(EngineLost, ServingError):
            await host.unload(*key)
        code = Code(error.code) if isinstance(error, ServingError) else Code.UNAVAILABLE
        before = self._failures.get(key)
        tries = before.tries + 1 if before is not None and before.mark == place.mark else 0
        due = self._due(tries) if again else None
        self._failures[key] = _Failure(place.mark, tries, due)
        self._tell(f"{key[0]} version {key[1]} is not served: {error}")
        self._put(Version(*key, State.END, code=code, error=str(error)))
        self._publish()

    async def _drop(self, name: str, number: int) -> None:
        version = self.catalogue.models[name].versions[number]
        held = self._held.pop((name, number), None)
        self._crashes.pop((name, number), None)
        self._put(replace(version, state=State.UNLOADING))
        await self._audience.heard(self._publish())
        with contextlib.suppress(EngineLost, ServingError):
            if held is not None:
                await held.host.unload(name, number)
        self._put(replace(version, state=State.END, engine="", signatures=None))
        self._publish()

    async def _drop_all(self, name: str) -> None:
        """A model that lies elsewhere now: its versions mean something else."""
        if (task := self._tending.get(name)) is not None:
            await asyncio.gather(task)
        for version in list(self.catalogue.models[name].versions.values()):
            if version.state is State.AVAILABLE:
                await self._drop(name, version.number)
            self._failures.pop((name, version.number), None)
            self.catalogue = versions.forget(self.catalogue, name, version.number)

    def _forgive(self, name: str) -> None:
        """Forget failures that are worth another try, or that nobody is interested in."""
        for key, failure in list(self._failures.items()):
            if key[0] != name:
                continue
            place = self._wanted[name].get(key[1])
            other = place is None or place.mark != failure.mark
            if other or (failure.due is not None and failure.due <= time.monotonic()):
                self.catalogue = versions.forget(self.catalogue, *key)
            if other:
                del self._failures[key]
                self._crashes.pop(key, None)
                self._blame.forget(key)
            elif failure.due is not None and failure.due <= time.monotonic():
                self._failures[key] = replace(failure, due=None)

    def _put_away(self, host: Host, key: Key, loading: bool) -> None:
        """This version has ended two engines."""
        model = self.catalogue.models.get(key[0])
        version = None if model is None else model.versions.get(key[1])
        if version is not None and version.state is State.LOADING:
            self._crashes[key] = self._crashes.get(key, 0) + 1  # Whoever loads it looks here.
        if version is None or version.state is not State.AVAILABLE:
            return
        if not loading and self._of(host) == [version]:
            return  # It harms nobody else, and is back in a moment.
        tries = self._crashes.get(key, 0)
        self._crashes[key] = tries + 1
        due = None if loading else self._due(tries)
        place = self._wanted.get(key[0], {}).get(key[1])
        self._failures[key] = _Failure("" if place is None else place.mark, tries, due)
        self._held.pop(key, None)
        text = "The engine ended each time it loaded this model; its files must change."
        if not loading:
            again = "when its files change"
            if due is not None:
                again = f"in {format_seconds(self._retries.wait)}, or {again}"
            text = (
                f"Engines ended while they ran {key[0]} version {key[1]}, which cost the other "
                f"models, too. It is tried again {again}. With --isolate {key[0]} it has an engine "
                "of its own, and is always served."
            )
        code = Code.INTERNAL if loading else Code.UNAVAILABLE
        self._tell(f"{key[0]} version {key[1]} is not served: {text}")
        self._put(replace(version, state=State.END, code=code, error=text, engine=""))

    def _due(self, tries: int) -> float | None:
        """When a version that failed so often before is tried again."""
        return time.monotonic() + self._retries.wait if tries < self._retries.most else None

    def _of(self, host: Host) -> list[Version]:
        """The versions that can be called, and are this one's."""
        return [
            version
            for model in self.catalogue.models.values()
            for version in model.versions.values()
            if version.state is State.AVAILABLE
            and (held := self._held.get((version.model, version.number))) is not None
            and held.host is host
        ]

    def _trouble(self, name: str, text: str) -> None:
        if self._troubles.get(name) != text:
            self._troubles[name] = text
            self._tell(f"{name}: {text}")

    def _put(self, version: Version) -> None:
        self.catalogue = versions.put(self.catalogue, version)

    def _publish(self) -> int:
        return self._audience.publish(self.catalogue)


async def _begin(host: Host, key: Key) -> asyncio.Future[Mapping[str, Signature]]:
    """Have it loaded: it is, or has failed, or takes long and goes on."""
    loading = asyncio.ensure_future(host.load(*key))
    try:
        await asyncio.wait([loading], timeout=_SLOW)
    except asyncio.CancelledError:
        loading.cancel()
        raise
    return loading


def _elsewhere(old: ModelConfig, new: ModelConfig) -> bool:
    return (old.base_path, old.isolate) != (new.base_path, new.isolate)
