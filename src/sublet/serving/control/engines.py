"""All engines of a server: on which devices they are, and which models each is to have.

There is one for the models of a device, and one for each model that wants an engine of its own. A
device that no model is placed on has none. What an engine loads, and when, the reconciler decides.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sublet.client.api import status
from sublet.domain.memory import Exactly, Share, parse_memory
from sublet.errors import BadRequest, ServingError
from sublet.inside import current_lease
from sublet.serving.control import model_directories, placement, versions
from sublet.serving.control.config import Settings
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.engine_supervisor import EngineSupervisor
from sublet.serving.control.placement import EngineDevice, ModelDemand
from sublet.serving.control.reconciler import Reconciler
from sublet.serving.metrics import Row
from sublet.units import MiB

_LEAST = 512 * MiB
_SCRATCH = 256 * MiB  # For what models compute with.

_EngineKey = tuple[str, str | None]
"""The name of a device, and the model that has an engine of its own there."""


class Engines:
    """`reconciler` is set before `start`. `place` names the devices of a model before `of` is
    asked for its engines. `on_change` is called when an engine falls silent, or answers again."""

    reconciler: Reconciler

    def __init__(
        self, settings: Settings, tell: Callable[[str], None], on_change: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._on_change = on_change
        self._devices: dict[str, EngineDevice] = {}
        self._supervisors: dict[_EngineKey, EngineSupervisor] = {}
        self._keys: dict[str, tuple[_EngineKey, ...]] = {}
        """By model: the engines that it is placed in."""
        self._sizes: dict[str, int] = {}
        self._past_restarts = 0

    @property
    def restarts(self) -> int:
        """How many engines were started in place of one that had ended."""
        return self._past_restarts + sum(one.restarts for one in self._supervisors.values())

    @property
    def silent(self) -> tuple[str, ...]:
        """The sockets of engines that do not answer."""
        return tuple(sorted(one.path for one in self._supervisors.values() if one.silent))

    async def start(self, configs: Sequence[ModelConfig]) -> None:
        """Start the engines that these models need. Raises what keeps one from starting."""
        rows = (await asyncio.to_thread(status)).devices
        found = placement.find(
            self._settings.device, rows, nested=current_lease.current() is not None
        )
        self._devices = {device.name: device for device in found}
        await self.place(configs)
        keys = {key for own in self._keys.values() for key in own}
        await asyncio.gather(*(self._make(key).start() for key in sorted(keys, key=str)))

    async def place(self, configs: Sequence[ModelConfig]) -> None:
        """Choose the devices of these models; all others lose theirs. Raises BadRequest, and
        changes nothing, if one cannot be where it has to be."""
        sizes = await asyncio.to_thread(lambda: {one.name: _size(one) for one in configs})
        if len(self._devices) > 1:
            sizes |= _measured(await self.rows(), sizes)
        demands = [self._demand(config, sizes[config.name]) for config in configs]
        before = {name: tuple(device for device, _ in keys) for name, keys in self._keys.items()}
        placed = placement.place(demands, await self._capacities(), before)
        if before and len(self._devices) > 1:
            for name, chosen in placed.items():
                if chosen != before.get(name):
                    self._tell(f"{name}: its place is {', '.join(chosen)}.")
        self._sizes = sizes
        self._keys = {
            one.name: tuple(
                (device, one.name if one.isolate else None) for device in placed[one.name]
            )
            for one in configs
        }

    def of(self, config: ModelConfig) -> tuple[EngineSupervisor, ...]:
        """The engines of this model; those that are missing are started in the background."""
        return tuple(map(self._supervisor, self._keys[config.name]))

    async def rows(self) -> list[Row]:
        """What all engines report about their models."""
        reports = await asyncio.gather(*(one.rows() for one in self._supervisors.values()))
        return [row for rows in reports for row in rows]

    async def keep_only(self, configs: Sequence[ModelConfig]) -> None:
        """End the engines that none of these models is placed in any more."""
        wanted = {key for one in configs for key in self._keys.get(one.name, ())}
        for key in [key for key in self._supervisors if key not in wanted]:
            if not self.reconciler.uses(self._supervisors[key]):
                supervisor = self._supervisors.pop(key)
                self._past_restarts += supervisor.restarts
                await supervisor.close()

    async def close(self, at_once: bool = False) -> None:
        """End all of them, by force if they may not take their time."""
        await asyncio.gather(*(one.close(at_once) for one in self._supervisors.values()))

    def _demand(self, config: ModelConfig, size: int) -> ModelDemand:
        names = tuple(
            device.name
            for device in self._devices.values()
            if not config.device or device.goes_by(config.device)
        )
        if not names:
            raise BadRequest(
                f"Model {config.name} is to be on device {config.device!r}, which this server does "
                f"not use; it has: {', '.join(self._devices)}.",
                "Name one of these, or start the server with --device.",
            )
        if config.replicas > len(names):
            raise BadRequest(
                f"Model {config.name} is to have {config.replicas} replicas, and may be on "
                f"{', '.join(names)} only.",
                "A device has one of them at most; ask for fewer, or name more with --device.",
            )
        scratch = _SCRATCH if config.isolate else 0
        return ModelDemand(config.name, 2 * size + scratch, names, config.replicas)

    async def _capacities(self) -> dict[str, int]:
        """The bytes that models may take on each device: what is free, and what they have."""
        if len(self._devices) == 1:
            return dict.fromkeys(self._devices, 0)
        free = {row.device.id: row.free for row in (await asyncio.to_thread(status)).devices}
        for one in self._supervisors.values():
            if one.lease is not None and one.lease.device in free:
                free[one.lease.device] += one.lease.charge
        sharing = Counter(one.device_id for one in self._devices.values())
        return {
            name: min(free.get(one.device_id, 0) // sharing[one.device_id], self._most(one))
            for name, one in self._devices.items()
        }

    def _most(self, device: EngineDevice) -> int:
        """What `--memory` leaves of a device, however much is free there."""
        capacity = 0 if device.device is None else device.device.capacity
        match parse_memory(self._settings.memory or "grow"):
            case Exactly(most):
                return min(most, capacity)
            case Share(share):
                return int(share * capacity)
        return capacity

    def _supervisor(self, key: _EngineKey) -> EngineSupervisor:
        supervisor = self._supervisors.get(key)
        if supervisor is None:
            supervisor = self._make(key)
            supervisor.start_in_background()
        return supervisor

    def _make(self, key: _EngineKey) -> EngineSupervisor:
        name, own = key
        settings, alone = self._settings, len(self._devices) == 1
        group = [model for model, keys in self._keys.items() if key in keys]
        memory = settings.memory if own is None else settings.isolate.get(own)
        needs = f"{own} needs" if own else "All models together need"
        if own is None and not alone:
            needs = f"The models for {name} need"
        supervisor = self._supervisors[key] = EngineSupervisor(
            f"serve: {own or f'{len(group)} model' + 's' * (len(group) != 1)}",
            memory or _estimate([self._sizes[model] for model in group]),
            self._devices[name].asked,
            self.reconciler,
            self._tell,
            needs="" if memory else needs,
            device_name="" if alone else name,
            batches=settings.batching.get("num_batch_threads", 0),
            patience=settings.patience,
            on_change=self._on_change,
        )
        return supervisor


def _measured(rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, int]:
    """What models take in memory: those in `sizes` that were ever loaded."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        if row.loads and row.model in sizes:
            found.setdefault(row.model, {})[row.version] = row.bytes
    return {model: sum(versions.values()) for model, versions in found.items()}


def _size(config: ModelConfig) -> int:
    """The bytes of the files of all wanted versions."""
    with contextlib.suppress(ServingError, OSError):
        found = model_directories.look(config.base_path)
        paths = versions.choose(config.policy, {n: one.path for n, one in found.items()})
        return sum(model_directories.size(path) for path in paths.values())
    return 0


def _estimate(sizes: Sequence[int]) -> str:
    """Memory for all of these, a second copy while each is replaced, and what they compute with."""
    amount = max(_LEAST, 2 * sum(sizes) + _SCRATCH)
    return f"{-(-amount // MiB)}MiB"
