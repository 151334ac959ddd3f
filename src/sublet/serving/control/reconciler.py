"""Brings what is served to what is wanted, model by model.

For each model there is at most one task that reconciles it, step by step as `versions.plan` says.
The steps themselves, and the catalogue, are those of `replicas`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from sublet.errors import ServingError
from sublet.serving.catalogue import Model, State
from sublet.serving.control import versions
from sublet.serving.control.blame import Key
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.load_failures import Failures, Retries
from sublet.serving.control.model_directories import ModelDirectory, look
from sublet.serving.control.replicas import Publisher, Replicas
from sublet.serving.control.supervised_engine import SupervisedEngine


class Reconciler(Replicas):
    """What is wanted, and what is served now. Used in one event loop. `engines_for` names the
    engines that a model is to be in; `options` are those of a version at a path."""

    def __init__(
        self,
        engines_for: Callable[[ModelConfig], tuple[SupervisedEngine, ...]],
        publisher: Publisher,
        options: Callable[[ModelConfig, str], dict[str, Any]],
        retries: Retries,
        tell: Callable[[str], None],
    ) -> None:
        self.configs: dict[str, ModelConfig] = {}
        self._engines_for = engines_for

        def options_of(name: str, path: str) -> dict[str, Any] | None:
            config = self.configs.get(name)
            return None if config is None else options(config, path)

        super().__init__(publisher, options_of, Failures(retries), tell)
        self._wanted: dict[str, dict[int, ModelDirectory]] = {}
        self._reconciling: dict[str, asyncio.Task[None]] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._troubles: dict[str, str] = {}

    async def replace(self, configs: Sequence[ModelConfig]) -> None:
        """Serve these models and no others; their labels count at once."""
        before, self.configs = self.configs, {config.name: config for config in configs}
        self.refused.clear()
        for name in self._wanted.keys() - self.configs.keys():
            self._wanted[name] = {}
            self._troubles.pop(name, None)
        for config in configs:
            model = self.catalogue.models.get(config.name) or Model(config.name)
            model = replace(model, labels=dict(config.labels))
            self.catalogue = versions.with_model(self.catalogue, model)
            old = before.get(config.name)
            if old is not None and old.base_path != config.base_path:
                await self._drop_all(config.name)
        self.publish()
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
        """Begin to do what is needed, without another look at the disk."""
        for name in list(self._wanted):
            self.forgive(name, self._wanted[name])
            self._reconcile_soon(name)

    async def settled(self) -> None:
        """Wait until nothing is being done."""
        while self._reconciling:
            await asyncio.gather(*self._reconciling.values())

    def troubles(self) -> dict[str, str]:
        """Models of which nothing was found, and why."""
        return dict(self._troubles)

    def engine_ended(
        self,
        engine: SupervisedEngine,
        path: str,
        loading: Sequence[Key],
        running: Sequence[Key] = (),
    ) -> None:
        super().engine_ended(engine, path, loading, running)
        for name, _ in list(self._leftovers):
            self._reconcile_soon(name)

    def engine_started_soon(self, engine: SupervisedEngine) -> None:
        task = asyncio.create_task(self.engine_started(engine))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    def close(self) -> None:
        for task in (*self._reconciling.values(), *self._returning):
            task.cancel()

    def _reconcile_soon(self, name: str) -> None:
        if name in self._wanted and name not in self._reconciling:
            task = self._reconciling[name] = asyncio.create_task(self._reconcile(name))
            task.add_done_callback(lambda _: self._reconciling.pop(name, None))

    async def _reconcile(self, name: str) -> None:
        while step := await self._next(name):
            for number in step.load:
                # What is wanted may have changed while the last one was loaded.
                directory, config = self._wanted[name].get(number), self.configs.get(name)
                if directory is not None and config is not None:
                    await self.load((name, number), directory, self._engines_for(config))
            if step.load:
                continue
            for number in step.move:
                if (config := self.configs.get(name)) is not None:
                    await self.move((name, number), self._targets(config, number))
            for number in step.drop:
                await self.drop((name, number))
        if name not in self.configs:
            self._wanted.pop(name, None)
            self.catalogue = versions.without_model(self.catalogue, name)
            self.publish()

    async def _next(self, name: str) -> versions.VersionPlan:
        await self.unload_leftovers(name)
        wanted = {number: one.path for number, one in self._wanted[name].items()}
        config = self.configs.get(name)
        astray = [
            number
            for number in wanted
            if config is not None
            and {*self.engines_of((name, number))} != {*self._targets(config, number)}
        ]
        return versions.plan(self.catalogue.models.get(name), wanted, astray)

    def _targets(self, config: ModelConfig, number: int) -> Sequence[SupervisedEngine]:
        """The engines that are to have a version, without those that could not load it."""
        key = (config.name, number)
        able = [one for one in self._engines_for(config) if (key, one) not in self.refused]
        return able or self.engines_of(key)

    async def _drop_all(self, name: str) -> None:
        """Drop the versions of a model that lies elsewhere now: they mean something else."""
        if (task := self._reconciling.get(name)) is not None:
            await asyncio.gather(task)
        for version in list(self.catalogue.models[name].versions.values()):
            key = (name, version.number)
            if version.state is State.AVAILABLE:
                await self.drop(key)
            self.forget(key)

    def _trouble(self, name: str, text: str) -> None:
        if self._troubles.get(name) != text:
            self._troubles[name] = text
            self._tell(f"{name}: {text}")
