"""Which engines have which versions: loaded, moved, unloaded, lost with an engine and loaded again.

Owns the catalogue, and publishes each change of it. Does what the reconciler asks, one step of a
version at a time; that engines end, and others start, may come at any moment.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.engine.savedmodel_proto import Signature
from sublet.errors import ServingError, SubletError
from sublet.serving.catalogue import Catalogue, State, Version
from sublet.serving.control import model_directories, versions
from sublet.serving.control.blame import Blame, Key
from sublet.serving.control.load_failures import Failures
from sublet.serving.control.model_directories import ModelDirectory
from sublet.serving.control.supervised_engine import EngineLost, SupervisedEngine
from sublet.units import format_seconds

_SLOW = 5.0
"""Seconds after which others are loaded beside a version that takes longer, or never ends."""

Options = Callable[[str, str], "dict[str, Any] | None"]
"""The options of a version by its model and path; None if nobody wants it."""


class Publisher(Protocol):
    """Sends the catalogue to those who route requests by it."""

    def publish(self, catalogue: Catalogue) -> int:
        """Send it; the number of this update."""

    async def acknowledged(self, number: int) -> None:
        """Wait until no request is routed by an older update."""


class _Replica(Struct, frozen=True):
    """A version that some engines have, or will have again when they are back."""

    engines: tuple[SupervisedEngine, ...]
    directory: ModelDirectory


class Replicas:
    """Brings versions to engines and takes them away; used in one event loop."""

    def __init__(
        self,
        publisher: Publisher,
        options: Options,
        failures: Failures,
        tell: Callable[[str], None],
    ) -> None:
        self.catalogue = Catalogue()
        self.refused: set[tuple[Key, SupervisedEngine]] = set()
        """Versions that are served, and the engines that could not load them."""
        self._publisher = publisher
        self._options = options
        self._failures = failures
        self._tell = tell
        self._replicas: dict[Key, _Replica] = {}
        self._leftovers: dict[Key, tuple[SupervisedEngine, ...]] = {}
        """Versions that were put away, and the engines that may still have them."""
        self._blame = Blame()
        self._busy: Counter[SupervisedEngine] = Counter()
        """Engines that are about to get a version, or to give one up."""

    def publish(self) -> int:
        return self._publisher.publish(self.catalogue)

    def engines_of(self, key: Key) -> tuple[SupervisedEngine, ...]:
        """The engines that have this version, or will have it again; none if it is not served."""
        replica = self._replicas.get(key)
        return () if replica is None else replica.engines

    def uses(self, engine: SupervisedEngine) -> bool:
        """Whether it has some version, or is about to get one or to give one up."""
        busy = bool(engine.path) and engine in self._busy
        return busy or any(engine in one.engines for one in self._replicas.values())

    async def load(
        self, key: Key, directory: ModelDirectory, engines: Sequence[SupervisedEngine]
    ) -> None:
        """Serve a version; it is available when the first of these engines has it."""
        crashes = self._failures.crashes(key)
        if crashes:
            self._blame.suspect(engines[0], key, time.monotonic())
        model = self.catalogue.models.get(key[0])
        others = () if model is None else model.versions.values()
        # One that takes another's place must have shown that it works, however full memory is.
        lazily = not any(one.state is State.AVAILABLE for one in others)
        self._put(Version(*key, State.LOADING))
        self.publish()
        errors = await asyncio.gather(
            *(self._join(engine, key, directory, lazily) for engine in engines)
        )
        failed = [(engine, error) for engine, error in zip(engines, errors, strict=True) if error]
        version = self._version(key)
        if version is not None and version.state is State.LOADING:
            again = self._failures.crashes(key) == crashes
            self._fail(key, directory, failed[0][1], again)
        elif key in self._replicas:
            for engine, error in failed:
                self._refuse(engine, key, error)

    async def move(self, key: Key, engines: Sequence[SupervisedEngine]) -> None:
        """Move a version that is served to these engines: it leaves one when another has it."""
        for engine in engines:
            replica = self._replicas.get(key)
            if replica is not None and engine not in replica.engines:
                error = await self._join(engine, key, replica.directory, lazily=False)
                if error is not None:
                    self._refuse(engine, key, error)
        leaving = [engine for engine in self.engines_of(key) if engine not in engines]
        if leaving and len(leaving) < len(self.engines_of(key)):
            await self._leave(key, leaving)

    async def drop(self, key: Key) -> None:
        """Stop serving a version; its requests are answered first."""
        version = self.catalogue.models[key[0]].versions[key[1]]
        replica = self._replicas.pop(key, None)
        self._failures.dropped(key)
        self._put(replace(version, state=State.UNLOADING))
        await self._withdraw(() if replica is None else replica.engines, key)
        self._put(replace(version, state=State.END, engines=(), devices=(), signatures=None))
        self.publish()

    async def unload_leftovers(self, name: str) -> None:
        """Unload versions of a model that were put away from engines that have not ended."""
        for key in [key for key in self._leftovers if key[0] == name]:
            await self._withdraw(self._leftovers.pop(key), key)

    def forget(self, key: Key) -> None:
        """Forget a version that is not served, its failures included."""
        self.catalogue = versions.forget(self.catalogue, *key)
        self._failures.worked(key)

    def forgive(self, name: str, directories: Mapping[int, ModelDirectory]) -> None:
        """Forget failures that are worth another try, or that nobody is interested in."""
        forgiven = self._failures.forgive(name, directories, time.monotonic())
        for key in (*forgiven.again, *forgiven.others):
            self.catalogue = versions.forget(self.catalogue, *key)
        for key in forgiven.others:
            self._blame.forget(key)

    def engine_ended(
        self,
        engine: SupervisedEngine,
        path: str,
        loading: Sequence[Key],
        running: Sequence[Key] = (),
    ) -> None:
        """The engine of this socket has ended: its versions cannot be called there until the
        next one is started. `loading` and `running` are what it was busy with: each may be the
        cause."""
        culprit = self._blame.judge(engine, (*loading, *running), time.monotonic())
        if culprit is not None:
            self._put_away(engine, culprit, culprit in loading)
        for version in self._available_in(engine):
            self._put(_without(version, path))
        self.publish()

    async def engine_started(self, engine: SupervisedEngine) -> None:
        """Bring the versions of the last engine into the one that took its place. First all are
        made known, so that calls wait for a load and do not fail; then they are loaded, as long
        as memory lasts."""
        path = engine.path
        known: list[Key] = []
        for key in [(version.model, version.number) for version in self._available_in(engine)]:
            replica = self._replicas.get(key)
            try:
                if replica is None or not await self._add(engine, key, replica.directory):
                    continue
            except SubletError as error:
                await self._lose(engine, key, error)
                continue
            except EngineLost:
                return
            version = self._version(key)
            if version is None or engine not in self.engines_of(key):
                await self._unload([engine], key)  # It was put away, or has left, meanwhile.
            elif engine.path == path:
                self._put(replace(version, engines=(*version.engines, path)))
                known.append(key)
        self.publish()
        for key in known:
            try:
                async with engine.load_lock:
                    if await engine.full():
                        return
                    loading = await _begin_load(engine, key)
                await loading
            except ServingError as error:
                self._tell(f"{key[0]} version {key[1]}: {error}")
            except EngineLost:
                return

    async def _join(
        self, engine: SupervisedEngine, key: Key, directory: ModelDirectory, lazily: bool
    ) -> SubletError | None:
        """Have a version in this engine, and publish that; the error that kept it out."""
        try:
            with self._using([engine]):
                path, signatures = await self._bring(engine, key, directory, lazily)
        except SubletError as error:
            await self._unload([engine], key)
            return error
        version = self._version(key)
        if version is not None and version.state is State.LOADING:
            version = Version(*key, State.AVAILABLE, signatures=signatures)
            self._failures.worked(key)
        elif version is None or key not in self._replicas:
            await self._unload([engine], key)  # It was put away meanwhile.
            return None
        replica = self._replicas.get(key) or _Replica((), directory)
        replica = self._replicas[key] = replace(replica, engines=(*replica.engines, engine))
        self._put(replace(version, engines=(*version.engines, path), devices=_devices(replica)))
        self.publish()
        return None

    async def _bring(
        self, engine: SupervisedEngine, key: Key, directory: ModelDirectory, lazily: bool
    ) -> tuple[str, Mapping[str, Signature]]:
        """Load it; the socket of the engine that has it, and its signatures."""
        crashes = self._failures.crashes(key)
        while True:
            await engine.ready()
            path = engine.path
            try:
                if not await self._add(engine, key, directory):
                    raise ServingError("It is not to be served any more.", Code.CANCELLED)
                signatures = await self._load(engine, key, directory.path, lazily)
                if engine.path == path:
                    return path, signatures
                # Else the engine that knows it has ended meanwhile.
            except ServingError:
                if engine.path == path:
                    raise  # Else it was asked of an engine that does not know it.
            except EngineLost as lost:
                if self._failures.crashes(key) > crashes:
                    raise ServingError(
                        f"{lost} It is not tried again until its files change.", Code.INTERNAL
                    ) from None

    async def _add(self, engine: SupervisedEngine, key: Key, directory: ModelDirectory) -> bool:
        """Make it known to an engine, if somebody wants it."""
        options = self._options(key[0], directory.path)
        if options is not None:
            await engine.add(*key, directory.path, options, self._blame.until(key))
        return options is not None

    async def _load(
        self, engine: SupervisedEngine, key: Key, path: str, lazily: bool
    ) -> Mapping[str, Signature]:
        """Load it; its signatures. If it may be `lazily` done and memory is full, only they are
        read: the first call loads it."""
        async with engine.load_lock:
            if lazily and await engine.full():
                read = await asyncio.to_thread(model_directories.signatures, path)
                if read:
                    return read
            loading = await _begin_load(engine, key)
        if not loading.done():
            self._tell(f"{key[0]} version {key[1]} takes long to load; others go on.")
        return await loading

    async def _leave(self, key: Key, engines: Sequence[SupervisedEngine]) -> None:
        """Take a version out of these engines; others keep it."""
        replica, version = self._replicas[key], self._version(key)
        assert version is not None
        kept = tuple(engine for engine in replica.engines if engine not in engines)
        replica = self._replicas[key] = replace(replica, engines=kept)
        for engine in engines:
            version = _without(version, engine.path)
        self._put(replace(version, devices=_devices(replica)))
        await self._withdraw(engines, key)

    async def _lose(self, engine: SupervisedEngine, key: Key, error: SubletError) -> None:
        """An engine does not take a version that the one before it had."""
        replica = self._replicas.get(key)
        if replica is None or engine not in replica.engines:
            return
        if replica.engines == (engine,):
            self._fail(key, replica.directory, error)
            await self._unload([engine], key)
        else:
            self._refuse(engine, key, error)
            await self._leave(key, [engine])

    def _fail(
        self, key: Key, directory: ModelDirectory, error: SubletError, again: bool = True
    ) -> None:
        """Note that no engine can hold this version, and why."""
        self._replicas.pop(key, None)
        code = Code(error.code) if isinstance(error, ServingError) else Code.UNAVAILABLE
        self._failures.failed(key, directory.mark, time.monotonic(), again)
        self._tell(f"{key[0]} version {key[1]} is not served: {error}")
        self._put(Version(*key, State.END, code=code, error=str(error)))
        self.publish()

    def _refuse(self, engine: SupervisedEngine, key: Key, error: SubletError) -> None:
        """It is served, but not by this engine."""
        self.refused.add((key, engine))
        self._tell(f"{key[0]} version {key[1]} is not on {engine.device or 'its engine'}: {error}")

    def _put_away(self, engine: SupervisedEngine, key: Key, loading: bool) -> None:
        """Stop serving a version that has ended two engines."""
        version = self._version(key)
        if version is not None and version.state is State.LOADING:
            self._failures.crashed(key)  # Whoever loads it looks here.
        if version is None or version.state is not State.AVAILABLE:
            return
        if not loading and self._available_in(engine) == [version]:
            return  # It harms nobody else, and is back in a moment.
        replica = self._replicas.pop(key)
        if len(replica.engines) > 1:
            self._leftovers[key] = tuple(one for one in replica.engines if one is not engine)
        now = time.monotonic()
        due = self._failures.put_away(key, replica.directory.mark, now, again=not loading)
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
        ended = replace(version, state=State.END, code=code, error=text)
        self._put(replace(ended, engines=(), devices=()))

    def _available_in(self, engine: SupervisedEngine) -> list[Version]:
        """The versions of this engine that can be called."""
        return [
            version
            for model in self.catalogue.models.values()
            for version in model.versions.values()
            if version.state is State.AVAILABLE
            and engine in self.engines_of((version.model, version.number))
        ]

    async def _withdraw(self, engines: Sequence[SupervisedEngine], key: Key) -> None:
        """Unload it from these engines, once no request is routed to it there."""
        with self._using(engines):
            await self._publisher.acknowledged(self.publish())
            await self._unload(engines, key)

    async def _unload(self, engines: Sequence[SupervisedEngine], key: Key) -> None:
        async def unload(engine: SupervisedEngine) -> None:
            with contextlib.suppress(EngineLost, ServingError):  # One that has ended has it not.
                await engine.unload(*key)

        with self._using(engines):
            await asyncio.gather(*map(unload, engines))

    @contextlib.contextmanager
    def _using(self, engines: Sequence[SupervisedEngine]) -> Iterator[None]:
        self._busy.update(engines)
        try:
            yield
        finally:
            self._busy.subtract(engines)
            self._busy = +self._busy

    def _version(self, key: Key) -> Version | None:
        model = self.catalogue.models.get(key[0])
        return None if model is None else model.versions.get(key[1])

    def _put(self, version: Version) -> None:
        self.catalogue = versions.put(self.catalogue, version)


async def _begin_load(
    engine: SupervisedEngine, key: Key
) -> asyncio.Future[Mapping[str, Signature]]:
    """Load it: returns when that is done or has failed, or takes long and goes on."""
    loading = asyncio.ensure_future(engine.load(*key))
    try:
        await asyncio.wait([loading], timeout=_SLOW)
    except asyncio.CancelledError:
        loading.cancel()
        raise
    return loading


def _without(version: Version, path: str) -> Version:
    """The same without the engine of this socket."""
    return replace(version, engines=tuple(one for one in version.engines if one != path))


def _devices(replica: _Replica) -> tuple[str, ...]:
    return tuple(engine.device for engine in replica.engines if engine.device)
