"""The models that are to be served: what is wanted, and one step after the other until it is so.

For each model there is at most one task that tends it, step by step as `versions.plan` says, until
what is served is what is wanted. The steps themselves are done by `replicas`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State
from sublet.serving.control import versions
from sublet.serving.control.blame import Key
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.load_failures import Failures, Retries
from sublet.serving.control.model_directories import ModelDirectory, look
from sublet.serving.control.replicas import Audience, Host, Replicas


class Reconciler:
    """What is served now, and what is wanted. Used in one event loop.

    `hosts` says who is to have a model; `options` are those of a version at a path.
    """

    def __init__(
        self,
        hosts: Callable[[ModelConfig], tuple[Host, ...]],
        audience: Audience,
        options: Callable[[ModelConfig, str], dict[str, Any]],
        retries: Retries,
        tell: Callable[[str], None],
    ) -> None:
        self.configs: dict[str, ModelConfig] = {}
        self._hosts = hosts
        self._tell = tell

        def told(name: str, path: str) -> dict[str, Any] | None:
            config = self.configs.get(name)
            return None if config is None else options(config, path)

        self._holdings = Replicas(audience, told, Failures(retries), tell)
        self._wanted: dict[str, dict[int, ModelDirectory]] = {}
        self._tending: dict[str, asyncio.Task[None]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._troubles: dict[str, str] = {}

    @property
    def catalogue(self) -> Catalogue:
        """What is served now."""
        return self._holdings.catalogue

    async def replace(self, configs: Sequence[ModelConfig]) -> None:
        """Serve these models and no others; their labels count at once."""
        before, self.configs = self.configs, {config.name: config for config in configs}
        self._holdings.refused.clear()
        for name in self._wanted.keys() - self.configs.keys():
            self._wanted[name] = {}
            self._troubles.pop(name, None)
        for config in configs:
            model = self.catalogue.models.get(config.name) or Model(config.name)
            model = replace(model, labels=dict(config.labels))
            self._holdings.catalogue = versions.with_model(self.catalogue, model)
            old = before.get(config.name)
            if old is not None and old.base_path != config.base_path:
                await self._drop_all(config.name)
        self._holdings.publish()
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
            self._holdings.forgive(name, self._wanted[name])
            self._tend_soon(name)

    async def settled(self) -> None:
        """Until nothing is being done."""
        while self._tending:
            await asyncio.gather(*self._tending.values())

    def troubles(self) -> dict[str, str]:
        """Models of which nothing was found, and why."""
        return dict(self._troubles)

    def has(self, host: Host) -> bool:
        """As `Holdings.has`."""
        return self._holdings.has(host)

    def away(
        self, host: Host, path: str, loading: Sequence[Key], running: Sequence[Key] = ()
    ) -> None:
        """As `Holdings.away`: the engine of this socket has ended."""
        name = self._holdings.away(host, path, loading, running)
        if name is not None:
            self._tend_soon(name)

    def back_soon(self, host: Host) -> None:
        """Begin with `back`."""
        task = asyncio.create_task(self.back(host))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def back(self, host: Host) -> None:
        """As `Holdings.back`: there is another engine."""
        await self._holdings.back(host)

    def close(self) -> None:
        """Do nothing more."""
        for task in (*self._tending.values(), *self._returning):
            task.cancel()

    def _tend_soon(self, name: str) -> None:
        if name in self._wanted and name not in self._tending:
            task = self._tending[name] = asyncio.create_task(self._tend(name))
            task.add_done_callback(lambda _: self._tending.pop(name, None))

    async def _tend(self, name: str) -> None:
        while step := await self._next(name):
            for number in step.load:
                # What is wanted may have changed while the last one was loaded.
                place, config = self._wanted[name].get(number), self.configs.get(name)
                if place is not None and config is not None:
                    await self._holdings.load((name, number), place, self._hosts(config))
            if step.load:
                continue
            for number in step.move:
                if (config := self.configs.get(name)) is not None:
                    await self._holdings.move((name, number), self._targets(config, number))
            for number in step.drop:
                await self._holdings.drop((name, number))
        if name not in self.configs:
            self._wanted.pop(name, None)
            self._holdings.catalogue = versions.without_model(self.catalogue, name)
            self._holdings.publish()

    async def _next(self, name: str) -> versions.VersionPlan:
        await self._holdings.clear(name)
        wanted = {number: place.path for number, place in self._wanted[name].items()}
        config = self.configs.get(name)
        astray = [
            number
            for number in wanted
            if config is not None
            and {*self._holdings.hosts((name, number))} != {*self._targets(config, number)}
        ]
        return versions.plan(self.catalogue.models.get(name), wanted, astray)

    def _targets(self, config: ModelConfig, number: int) -> Sequence[Host]:
        """Who is to have a version that is served: who is wanted, as far as it could be done."""
        key = (config.name, number)
        able = [one for one in self._hosts(config) if (key, one) not in self._holdings.refused]
        return able or self._holdings.hosts(key)

    async def _drop_all(self, name: str) -> None:
        """A model that lies elsewhere now: its versions mean something else."""
        if (task := self._tending.get(name)) is not None:
            await asyncio.gather(task)
        for version in list(self.catalogue.models[name].versions.values()):
            key = (name, version.number)
            if version.state is State.AVAILABLE:
                await self._holdings.drop(key)
            self._holdings.forget(key)

    def _trouble(self, name: str, text: str) -> None:
        if self._troubles.get(name) != text:
            self._troubles[name] = text
            self._tell(f"{name}: {text}")
