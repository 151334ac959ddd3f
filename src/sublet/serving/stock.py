"""The models that are to be served, and their way to and from the engines.

Owns the catalogue: nobody else changes it. For each model there is at most one task that tends it,
step by step as `versions.plan` says, until what is served is what is wanted.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.errors import ServingError, SubletError
from sublet.serving import versions
from sublet.serving.blame import Blame, Key
from sublet.serving.catalogue import Catalogue, Model, Signature, State, Version
from sublet.serving.delivery import deliver, deliver_again
from sublet.serving.failures import Failures, Retries
from sublet.serving.host import Audience, EngineLost, Host
from sublet.serving.textproto import ModelConfig
from sublet.serving.watch import Place, look
from sublet.units import format_seconds


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
        self._tell = tell
        self._wanted: dict[str, dict[int, Place]] = {}
        self._held: dict[Key, _Held] = {}
        self._tending: dict[str, asyncio.Task[None]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._failures = Failures(retries)
        self._blame = Blame()
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
                if not await deliver_again(host, (version.model, version.number)):
                    return
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
        crashes = self._failures.crashes(key)
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
                except EngineLost as lost:
                    if self._failures.crashes(key) > crashes:
                        raise ServingError(
                            f"{lost} It is not tried again until its files change.",
                            Code.INTERNAL,
                        ) from None
        except SubletError as error:
            await self._failed(host, key, place, error, self._failures.crashes(key) == crashes)
            return
        self._held[key] = _Held(host, place)
        self._failures.worked(key)
        self._put(Version(*key, State.AVAILABLE, engine=path, signatures=signatures))
        self._publish()

    async def _add(self, host: Host, config: ModelConfig, key: Key, place: Place) -> None:
        options = self._options(config, place.path)
        await host.add(*key, place.path, options, self._blame.until(key))

    async def _bring(self, host: Host, key: Key, place: Place) -> Mapping[str, Signature]:
        """Have it loaded; its signatures. One that takes another's place must have shown that it
        works, however full memory is."""
        others = self.catalogue.models[key[0]].versions.values()
        lazily = not any(one.state is State.AVAILABLE for one in others)
        return await deliver(host, key, place.path, lazily, self._tell)

    async def _failed(
        self, host: Host, key: Key, place: Place, error: SubletError, again: bool = True
    ) -> None:
        self._held.pop(key, None)
        with contextlib.suppress(EngineLost, ServingError):
            await host.unload(*key)
        code = Code(error.code) if isinstance(error, ServingError) else Code.UNAVAILABLE
        self._failures.failed(key, place.mark, time.monotonic(), again)
        self._tell(f"{key[0]} version {key[1]} is not served: {error}")
        self._put(Version(*key, State.END, code=code, error=str(error)))
        self._publish()

    async def _drop(self, name: str, number: int) -> None:
        version = self.catalogue.models[name].versions[number]
        held = self._held.pop((name, number), None)
        self._failures.dropped((name, number))
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
            self._failures.worked((name, version.number))
            self.catalogue = versions.forget(self.catalogue, name, version.number)

    def _forgive(self, name: str) -> None:
        """Forget failures that are worth another try, or that nobody is interested in."""
        forgiven = self._failures.forgive(name, self._wanted[name], time.monotonic())
        for key in (*forgiven.again, *forgiven.others):
            self.catalogue = versions.forget(self.catalogue, *key)
        for key in forgiven.others:
            self._blame.forget(key)

    def _put_away(self, host: Host, key: Key, loading: bool) -> None:
        """This version has ended two engines."""
        model = self.catalogue.models.get(key[0])
        version = None if model is None else model.versions.get(key[1])
        if version is not None and version.state is State.LOADING:
            self._failures.crashed(key)  # Whoever loads it looks here.
        if version is None or version.state is not State.AVAILABLE:
            return
        if not loading and self._of(host) == [version]:
            return  # It harms nobody else, and is back in a moment.
        place = self._wanted.get(key[0], {}).get(key[1])
        mark = "" if place is None else place.mark
        due = self._failures.put_away(key, mark, time.monotonic(), again=not loading)
        self._held.pop(key, None)
        text = "The engine ended each time it loaded this model; its files must change."
        if not loading:
            again = "when its files change"
            if due:
                again = f"in {format_seconds(self._failures.retries.wait)}, or {again}"
            text = (
                f"Engines ended while they ran {key[0]} version {key[1]}, which cost the other "
                f"models, too. It is tried again {again}. With --isolate {key[0]} it has an engine "
                "of its own, and is always served."
            )
        code = Code.INTERNAL if loading else Code.UNAVAILABLE
        self._tell(f"{key[0]} version {key[1]} is not served: {text}")
        self._put(replace(version, state=State.END, code=code, error=text, engine=""))

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


def _elsewhere(old: ModelConfig, new: ModelConfig) -> bool:
    return (old.base_path, old.isolate) != (new.base_path, new.isolate)
