"""All engines of a server: on which devices they are, and which models each is to have.

There is one for the models of a device, and one for each model that wants an engine of its own. A
device that no model is placed on has none. What an engine is to load, and when, is the stock's to
say.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sublet.client.api import status
from sublet.domain.memory import Exactly, Share, parse_memory
from sublet.errors import BadRequest, ServingError
from sublet.formats import lease
from sublet.serving.control import model_directories, placement, versions
from sublet.serving.control.config import Settings
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.engine_supervisor import EngineSupervisor
from sublet.serving.control.placement import DeviceSite, ModelDemand
from sublet.serving.control.reconciler import Reconciler
from sublet.serving.metrics import Row
from sublet.units import MiB

_LEAST = 512 * MiB
_BESIDE = 256 * MiB
"""For what models compute with."""

_Spot = tuple[str, str | None]
"""The name of a site, and the model that has an engine of its own there."""


class Engines:
    """`reconciler` is set before anything is started. Models are placed before they are asked
    for."""

    stock: Reconciler

    def __init__(
        self, settings: Settings, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._changed = changed
        """Called when another engine is silent, or one is not any more."""
        self._sites: dict[str, DeviceSite] = {}
        self._slots: dict[_Spot, EngineSupervisor] = {}
        self._spots: dict[str, tuple[_Spot, ...]] = {}
        """Of each model."""
        self._sizes: dict[str, int] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._past_restarts = 0

    @property
    def restarts(self) -> int:
        """How many engines were put in the place of one that ended."""
        return self._past_restarts + sum(slot.restarts for slot in self._slots.values())

    @property
    def silent(self) -> tuple[str, ...]:
        """The sockets of engines that give no answers."""
        return tuple(sorted(slot.path for slot in self._slots.values() if slot.silent))

    async def start(self, configs: Sequence[ModelConfig]) -> None:
        """Have the engines that these models need. Raises what keeps one from starting."""
        rows = (await asyncio.to_thread(status)).devices
        nested = lease.current() is not None
        found = placement.find(self._settings.device, rows, nested)
        self._sites = {site.name: site for site in found}
        await self.place(configs)
        spots = {spot for own in self._spots.values() for spot in own}
        slots = [self._make(spot) for spot in sorted(spots, key=str)]
        await asyncio.gather(*(slot.start() for slot in slots))

    async def place(self, configs: Sequence[ModelConfig]) -> None:
        """Say where each of these models is to be; others have no place any more.

        Raises BadRequest if one cannot be where it has to; nothing is changed then.
        """
        sizes = await asyncio.to_thread(_sizes, configs)
        if len(self._sites) > 1:
            sizes |= _measured(await self.rows(), sizes)
        candidates = [self._candidate(config, sizes[config.name]) for config in configs]
        before = {name: tuple(site for site, _ in spots) for name, spots in self._spots.items()}
        placed = placement.place(candidates, await self._rooms(), before)
        if before and len(self._sites) > 1:
            for name, chosen in placed.items():
                if chosen != before.get(name):
                    self._tell(f"{name}: its place is {', '.join(chosen)}.")
        self._sizes = sizes
        self._spots = {
            one.name: tuple((site, one.name if one.isolate else None) for site in placed[one.name])
            for one in configs
        }

    def of(self, config: ModelConfig) -> tuple[EngineSupervisor, ...]:
        """The places of this model's engines; new ones are begun where there are none."""
        return tuple(map(self._slot, self._spots[config.name]))

    async def rows(self) -> list[Row]:
        """What all engines say about their models."""
        told = await asyncio.gather(*(slot.rows() for slot in self._slots.values()))
        return [row for rows in told for row in rows]

    async def keep_only(self, configs: Sequence[ModelConfig]) -> None:
        """End the engines that none of these models is to be in any more."""
        wanted = {spot for one in configs for spot in self._spots.get(one.name, ())}
        for spot in [spot for spot in self._slots if spot not in wanted]:
            if not self.stock.has(self._slots[spot]):
                slot = self._slots.pop(spot)
                self._past_restarts += slot.restarts
                await slot.close()

    async def close(self, at_once: bool = False) -> None:
        """End all of them, by force if they may not take their time."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*(slot.close(at_once) for slot in self._slots.values()))

    def _candidate(self, config: ModelConfig, size: int) -> ModelDemand:
        names = tuple(
            site.name
            for site in self._sites.values()
            if not config.device or site.goes_by(config.device)
        )
        if not names:
            raise BadRequest(
                f"Model {config.name} is to be on device {config.device!r}, which this server does "
                f"not use; it has: {', '.join(self._sites)}.",
                "Name one of these, or start the server with --device.",
            )
        if config.replicas > len(names):
            raise BadRequest(
                f"Model {config.name} is to have {config.replicas} replicas, and may be on "
                f"{', '.join(names)} only.",
                "A device has one of them at most; ask for fewer, or name more with --device.",
            )
        beside = _BESIDE if config.isolate else 0
        return ModelDemand(config.name, 2 * size + beside, names, config.replicas)

    async def _rooms(self) -> dict[str, int]:
        """The bytes that models may take at each site: what is free, and what they have."""
        if len(self._sites) == 1:
            return dict.fromkeys(self._sites, 0)
        free = {row.device.id: row.free for row in (await asyncio.to_thread(status)).devices}
        for slot in self._slots.values():
            if slot.lease is not None and slot.lease.device in free:
                free[slot.lease.device] += slot.lease.charge
        sharing = Counter(site.device and site.device.id for site in self._sites.values())
        rooms = {}
        for name, site in self._sites.items():
            device = site.device and site.device.id
            rooms[name] = min(free.get(device or "", 0) // sharing[device], self._most(site))
        return rooms

    def _most(self, site: DeviceSite) -> int:
        """What `--memory` leaves of a site, whatever is free there."""
        capacity = 0 if site.device is None else site.device.capacity
        match parse_memory(self._settings.memory or "grow"):
            case Exactly(most):
                return min(most, capacity)
            case Share(share):
                return int(share * capacity)
        return capacity

    def _slot(self, spot: _Spot) -> EngineSupervisor:
        slot = self._slots.get(spot)
        if slot is None:
            slot = self._make(spot)
            task = asyncio.create_task(slot.start_anyhow())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
        return slot

    def _make(self, spot: _Spot) -> EngineSupervisor:
        name, own = spot
        told, site, alone = self._settings, self._sites[name], len(self._sites) == 1
        group = [model for model, spots in self._spots.items() if spot in spots]
        memory = told.memory if own is None else told.isolate.get(own)
        whose = f"{own} needs" if own else "All models together need"
        if own is None and not alone:
            whose = f"The models for {name} need"
        slot = self._slots[spot] = EngineSupervisor(
            f"serve: {own or f'{len(group)} model' + 's' * (len(group) != 1)}",
            memory or _estimate([self._sizes[model] for model in group]),
            site.asked,
            self.stock,
            self._tell,
            whose="" if memory else whose,
            site="" if alone else name,
            batches=told.batching.get("num_batch_threads", 0),
            patience=told.patience,
            changed=self._changed,
        )
        return slot


def _sizes(configs: Sequence[ModelConfig]) -> dict[str, int]:
    """What the files of each model's versions come to."""
    return {config.name: _size(config) for config in configs}


def _measured(rows: Sequence[Row], sizes: Mapping[str, int]) -> dict[str, int]:
    """What the models take in memory, of those that were loaded and have a size."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        if row.loads and row.model in sizes:
            found.setdefault(row.model, {})[row.version] = row.bytes
    return {model: sum(versions.values()) for model, versions in found.items()}


def _size(config: ModelConfig) -> int:
    with contextlib.suppress(ServingError, OSError):
        found: Mapping[int, model_directories.ModelDirectory] = model_directories.look(
            config.base_path
        )
        paths = versions.choose(config.policy, {n: one.path for n, one in found.items()})
        return sum(model_directories.size(path) for path in paths.values())
    return 0


def _estimate(sizes: Sequence[int]) -> str:
    """Room for all of these, a second copy of each while it is replaced, and what they compute."""
    amount = max(_LEAST, 2 * sum(sizes) + _BESIDE)
    return f"{-(-amount // MiB)}MiB"
