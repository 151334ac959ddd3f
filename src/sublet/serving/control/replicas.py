"""Which engines have which versions: brought there, moved, taken away, lost and brought back.

Owns the catalogue, and says each change of it to whoever has to know. Does what it is asked; what
is wanted, and when it is done, is the stock's to say.
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
from sublet.errors import ServingError, SubletError
from sublet.serving.catalogue import Catalogue, Signature, State, Version
from sublet.serving.control import model_directories, versions
from sublet.serving.control.blame import Blame, Key
from sublet.serving.control.load_failures import Failures
from sublet.serving.control.model_directories import ModelDirectory
from sublet.units import format_seconds


class EngineLost(Exception):
    """The engine has ended while it was asked for something."""


class Host(Protocol):
    """Who has an engine for models, and puts another in its place when it ends."""

    site: str
    """The device that it is on; empty if the server uses no other."""
    path: str
    """The socket of the engine; empty while there is none."""
    turn: asyncio.Lock
    """Held by whoever has it load something."""

    async def ready(self) -> None:
        """Until there is an engine. Raises BadRequest if there can be none."""

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


Options = Callable[[str, str], "dict[str, Any] | None"]
"""What an engine is told about a version of this model at this path; None if nobody wants it."""


class _Held(Struct, frozen=True):
    """A version that some engines have, or are to have again when they are back."""

    hosts: tuple[Host, ...]
    place: ModelDirectory


class Replicas:
    """Used in one event loop. Of each version, one step is done at a time; that engines end, and
    are back, may come at any moment."""

    def __init__(
        self,
        audience: Audience,
        options: Options,
        failures: Failures,
        tell: Callable[[str], None],
    ) -> None:
        self.catalogue = Catalogue()
        self.refused: set[tuple[Key, Host]] = set()
        """Versions that are served, and by whom they could not be."""
        self._audience = audience
        self._options = options
        self._failures = failures
        self._tell = tell
        self._held: dict[Key, _Held] = {}
        self._left: dict[Key, tuple[Host, ...]] = {}
        """Versions that were put away, and who may still have them."""
        self._blame = Blame()
        self._busy: Counter[Host] = Counter()
        """Who is about to get a version, or to give one up."""

    def publish(self) -> int:
        """Tell all what is served; the number of this news."""
        return self._audience.publish(self.catalogue)

    def hosts(self, key: Key) -> tuple[Host, ...]:
        """Who has this version, or is to have it again; none if it is not served."""
        held = self._held.get(key)
        return () if held is None else held.hosts

    def has(self, host: Host) -> bool:
        """Whether this one has some version, or its engine is about to get or to give up one."""
        busy = bool(host.path) and host in self._busy
        return busy or any(host in held.hosts for held in self._held.values())

    async def load(self, key: Key, place: ModelDirectory, hosts: Sequence[Host]) -> None:
        """Serve a version; it is there when the first of these hosts has it."""
        crashes = self._failures.crashes(key)
        if crashes:
            self._blame.suspect(hosts[0], key, time.monotonic())
        model = self.catalogue.models.get(key[0])
        others = () if model is None else model.versions.values()
        # One that takes another's place must have shown that it works, however full memory is.
        lazily = not any(one.state is State.AVAILABLE for one in others)
        self._put(Version(*key, State.LOADING))
        self.publish()
        errors = await asyncio.gather(*(self._join(host, key, place, lazily) for host in hosts))
        failed = [(host, error) for host, error in zip(hosts, errors, strict=True) if error]
        if self._state(key) is State.LOADING:
            again = self._failures.crashes(key) == crashes
            self._failed(key, place, failed[0][1], again)
        elif key in self._held:
            for host, error in failed:
                self._refuse(host, key, error)

    async def move(self, key: Key, hosts: Sequence[Host]) -> None:
        """Have a version that is served by these hosts: it leaves one when another has it."""
        for host in hosts:
            held = self._held.get(key)
            if held is not None and host not in held.hosts:
                error = await self._join(host, key, held.place, lazily=False)
                if error is not None:
                    self._refuse(host, key, error)
        leaving = [host for host in self.hosts(key) if host not in hosts]
        if leaving and len(leaving) < len(self.hosts(key)):
            await self._leave(key, leaving)

    async def drop(self, key: Key) -> None:
        """Serve a version no more; what was asked of it is answered."""
        version = self.catalogue.models[key[0]].versions[key[1]]
        held = self._held.pop(key, None)
        self._failures.dropped(key)
        self._put(replace(version, state=State.UNLOADING))
        await self._withdraw(() if held is None else held.hosts, key)
        self._put(replace(version, state=State.END, engines=(), devices=(), signatures=None))
        self.publish()

    async def clear(self, name: str) -> None:
        """Take versions of a model that were put away out of engines that have not ended."""
        for key in [key for key in self._left if key[0] == name]:
            await self._withdraw(self._left.pop(key), key)

    def forget(self, key: Key) -> None:
        """Nothing is known of a version that is not served."""
        self.catalogue = versions.forget(self.catalogue, *key)
        self._failures.worked(key)

    def forgive(self, name: str, places: Mapping[int, ModelDirectory]) -> None:
        """Forget failures that are worth another try, or that nobody is interested in."""
        forgiven = self._failures.forgive(name, places, time.monotonic())
        for key in (*forgiven.again, *forgiven.others):
            self.catalogue = versions.forget(self.catalogue, *key)
        for key in forgiven.others:
            self._blame.forget(key)

    def away(
        self, host: Host, path: str, loading: Sequence[Key], running: Sequence[Key]
    ) -> str | None:
        """The engine of this socket has ended: what it has is not to be had there until it is back.

        `loading` and `running` are the versions that it was just busy with: each may be why. The
        model of which a version was put away that others may still have: `clear` it.
        """
        culprit = self._blame.judge(host, (*loading, *running), time.monotonic())
        if culprit is not None:
            self._put_away(host, culprit, culprit in loading)
        for version in self._of(host):
            self._put(_without(version, path))
        self.publish()
        return culprit[0] if culprit in self._left else None

    async def back(self, host: Host) -> None:
        """There is another engine: it gets what the last one had.

        First all are made known, so that calls wait for a load and do not fail; then they are
        loaded, as long as there is room.
        """
        path = host.path
        known: list[Key] = []
        for key in [(version.model, version.number) for version in self._of(host)]:
            held = self._held.get(key)
            try:
                if held is None or not await self._add(host, key, held.place):
                    continue
            except SubletError as error:
                await self._lose(host, key, error)
                continue
            except EngineLost:
                return
            version = self._version(key)
            if version is None or host not in self.hosts(key):
                await self._unload([host], key)  # It was put away, or has left, meanwhile.
            elif host.path == path:
                self._put(replace(version, engines=(*version.engines, path)))
                known.append(key)
        self.publish()
        for key in known:
            try:
                if not await deliver_again(host, key):
                    return
            except ServingError as error:
                self._tell(f"{key[0]} version {key[1]}: {error}")
            except EngineLost:
                return

    async def _join(
        self, host: Host, key: Key, place: ModelDirectory, lazily: bool
    ) -> SubletError | None:
        """Have a version in this engine, and say so; what kept it from that."""
        try:
            with self._using([host]):
                path, signatures = await self._bring(host, key, place, lazily)
        except SubletError as error:
            await self._unload([host], key)
            return error
        version = self._version(key)
        if version is not None and version.state is State.LOADING:
            version = Version(*key, State.AVAILABLE, signatures=signatures)
            self._failures.worked(key)
        elif version is None or key not in self._held:
            await self._unload([host], key)  # It was put away meanwhile.
            return None
        held = self._held.get(key) or _Held((), place)
        held = self._held[key] = replace(held, hosts=(*held.hosts, host))
        self._put(replace(version, engines=(*version.engines, path), devices=_devices(held)))
        self.publish()
        return None

    async def _bring(
        self, host: Host, key: Key, place: ModelDirectory, lazily: bool
    ) -> tuple[str, Mapping[str, Signature]]:
        """Have it loaded; by the engine of which socket, and its signatures."""
        crashes = self._failures.crashes(key)
        while True:
            await host.ready()
            path = host.path
            try:
                if not await self._add(host, key, place):
                    raise ServingError("It is not to be served any more.", Code.CANCELLED)
                signatures = await deliver(host, key, place.path, lazily, self._tell)
                if host.path == path:
                    return path, signatures
                # Else the engine that knows it has ended meanwhile.
            except ServingError:
                if host.path == path:
                    raise  # Else it was asked of an engine that does not know it.
            except EngineLost as lost:
                if self._failures.crashes(key) > crashes:
                    raise ServingError(
                        f"{lost} It is not tried again until its files change.", Code.INTERNAL
                    ) from None

    async def _add(self, host: Host, key: Key, place: ModelDirectory) -> bool:
        """Make it known to an engine, if somebody wants it."""
        options = self._options(key[0], place.path)
        if options is not None:
            await host.add(*key, place.path, options, self._blame.until(key))
        return options is not None

    async def _leave(self, key: Key, hosts: Sequence[Host]) -> None:
        """Take a version that others have, too, out of these engines."""
        held, version = self._held[key], self._version(key)
        assert version is not None
        held = replace(held, hosts=tuple(host for host in held.hosts if host not in hosts))
        self._held[key] = held
        for host in hosts:
            version = _without(version, host.path)
        self._put(replace(version, devices=_devices(held)))
        await self._withdraw(hosts, key)

    async def _lose(self, host: Host, key: Key, error: SubletError) -> None:
        """An engine that is back does not take a version that the last one had."""
        held = self._held.get(key)
        if held is None or host not in held.hosts:
            return
        if held.hosts == (host,):
            self._failed(key, held.place, error)
            await self._unload([host], key)
        else:
            self._refuse(host, key, error)
            await self._leave(key, [host])

    def _failed(
        self, key: Key, place: ModelDirectory, error: SubletError, again: bool = True
    ) -> None:
        """No engine can have it."""
        self._held.pop(key, None)
        code = Code(error.code) if isinstance(error, ServingError) else Code.UNAVAILABLE
        self._failures.failed(key, place.mark, time.monotonic(), again)
        self._tell(f"{key[0]} version {key[1]} is not served: {error}")
        self._put(Version(*key, State.END, code=code, error=str(error)))
        self.publish()

    def _refuse(self, host: Host, key: Key, error: SubletError) -> None:
        """It is served, and not by this one."""
        self.refused.add((key, host))
        self._tell(f"{key[0]} version {key[1]} is not on {host.site or 'its engine'}: {error}")

    def _put_away(self, host: Host, key: Key, loading: bool) -> None:
        """This version has ended two engines."""
        version = self._version(key)
        if version is not None and version.state is State.LOADING:
            self._failures.crashed(key)  # Whoever loads it looks here.
        if version is None or version.state is not State.AVAILABLE:
            return
        if not loading and self._of(host) == [version]:
            return  # It harms nobody else, and is back in a moment.
        held = self._held.pop(key)
        if len(held.hosts) > 1:
            self._left[key] = tuple(one for one in held.hosts if one is not host)
        now = time.monotonic()
        due = self._failures.put_away(key, held.place.mark, now, again=not loading)
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

    def _of(self, host: Host) -> list[Version]:
        """The versions that can be called, and are this one's."""
        return [
            version
            for model in self.catalogue.models.values()
            for version in model.versions.values()
            if version.state is State.AVAILABLE
            and host in self.hosts((version.model, version.number))
        ]

    async def _withdraw(self, hosts: Sequence[Host], key: Key) -> None:
        """Have these know it no more, once nobody calls it there."""
        with self._using(hosts):
            await self._audience.heard(self.publish())
            await self._unload(hosts, key)

    async def _unload(self, hosts: Sequence[Host], key: Key) -> None:
        """Have these know it no more; engines that have ended do not."""

        async def unload(host: Host) -> None:
            with contextlib.suppress(EngineLost, ServingError):
                await host.unload(*key)

        with self._using(hosts):
            await asyncio.gather(*map(unload, hosts))

    @contextlib.contextmanager
    def _using(self, hosts: Sequence[Host]) -> Iterator[None]:
        self._busy.update(hosts)
        try:
            yield
        finally:
            self._busy.subtract(hosts)
            self._busy = +self._busy

    def _version(self, key: Key) -> Version | None:
        model = self.catalogue.models.get(key[0])
        return None if model is None else model.versions.get(key[1])

    def _state(self, key: Key) -> State | None:
        version = self._version(key)
        return None if version is None else version.state

    def _put(self, version: Version) -> None:
        self.catalogue = versions.put(self.catalogue, version)


def _without(version: Version, path: str) -> Version:
    """The same without the engine of this socket."""
    return replace(version, engines=tuple(one for one in version.engines if one != path))


def _devices(held: _Held) -> tuple[str, ...]:
    return tuple(host.site for host in held.hosts if host.site)


_SLOW = 5.0
"""Seconds after which others are loaded beside a version that takes longer, or never ends."""


async def deliver(
    host: Host, key: Key, path: str, lazily: bool, tell: Callable[[str], None]
) -> Mapping[str, Signature]:
    """Have it loaded; its signatures. If it may be done `lazily` and memory is full, it is only
    looked into: whoever calls it first has it loaded."""
    async with host.turn:
        if lazily and await host.full():
            seen = await asyncio.to_thread(model_directories.signatures, path)
            if seen:
                return seen
        loading = await _begin(host, key)
    if not loading.done():
        tell(f"{key[0]} version {key[1]} takes long to load; others go on.")
    return await loading


async def deliver_again(host: Host, key: Key) -> bool:
    """Have it loaded in an engine that took another's place; False if there is no room left."""
    async with host.turn:
        if await host.full():
            return False
        loading = await _begin(host, key)
    await loading
    return True


async def _begin(host: Host, key: Key) -> asyncio.Future[Mapping[str, Signature]]:
    """Have it loaded: it is, or has failed, or takes long and goes on."""
    loading = asyncio.ensure_future(host.load(*key))
    try:
        await asyncio.wait([loading], timeout=_SLOW)
    except asyncio.CancelledError:
        loading.cancel()
        raise
    return loading
