"""The server behind `sublet serve`: what is served, by which processes, until a signal ends it.

    settings ─▶ Reconciler (what is wanted; the catalogue) ─▶ Engines (restarted when they end)
                    └─ catalogue ─▶ FrontEnds (restarted when they end) ◀─ clients

It holds no tensor and no request: those go from a front end straight to an engine.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable

from sublet.channel.codes import Code
from sublet.errors import ServingError, SubletError
from sublet.home import Home
from sublet.serving import frontend_link as messages
from sublet.serving import metrics, redaction
from sublet.serving.catalogue import Catalogue, State
from sublet.serving.client.notices import Notices
from sublet.serving.control import config, news, versions
from sublet.serving.control.config import Settings
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.engines import Engines
from sublet.serving.control.frontend_supervisor import FrontEnds
from sublet.serving.control.listeners import Listeners
from sublet.serving.control.load_failures import Retries
from sublet.serving.control.reconciler import Reconciler
from sublet.units import format_seconds

_LAST = 30.0
"""Seconds for the end itself, after all requests: engines are ended by force before that."""
_BRIEF = 0.5
"""Seconds for the last answers that nobody needs to hear about."""
_LOOK = 1.0
"""Seconds between two looks at versions that are to be tried again."""


class Server:
    """One server, from its first look at the settings to its end. `tell` hears what goes wrong."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self._tell = tell
        self._listeners = Listeners(settings.frontends)
        self._signals: list[int] = []
        self._signalled = asyncio.Event()
        self.addresses, openings = self._open()
        self._frontends = FrontEnds(
            openings, self._reload, self._exposition, settings.patience, tell
        )
        self._notices = Notices()
        self._home = Home.find().name
        self._engines = Engines(settings, tell, self._publish_again)
        self.reconciler = Reconciler(
            self._engines.of,
            self,
            lambda model, path: config.options(settings, model, path),
            Retries(settings.retries, settings.retry_wait),
            tell,
        )
        self._engines.reconciler = self.reconciler
        self._ready = False
        self._published = Catalogue()
        self._reloading = asyncio.Lock()
        self._known: dict[str, ModelConfig] = {}  # What was served before a client changed it.
        self._roots: tuple[str, ...] = ()  # Directories below which clients may have models loaded.
        self._reloaded = False
        """Whether a client has said what is served: then a directory does not any more."""

    async def serve(self, ready: Callable[[list[metrics.Row]], None]) -> int:
        """Serve until a signal; the exit code. The first SIGTERM or SIGINT drains, the second
        ends at once. `ready` is called with the models when all have been looked at."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # What was ignored stays so, as after `nohup`.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._signal, number)
        work = asyncio.create_task(self._serve(ready))
        heard = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait({work, heard}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            work.cancel()
            return await self._end()
        finally:
            _end_anyway(128 + (self._signals or [signal.SIGTERM])[-1])
            heard.cancel()
            await asyncio.gather(work, heard, return_exceptions=True)
            self._listeners.close()
            self.reconciler.close()
            self._notices.close()
            await self._frontends.stop()
            await self._engines.close(at_once=len(self._signals) > 1)

    def publish(self, catalogue: Catalogue) -> int:
        """As a `Publisher`: to front ends, and to programs that call engines directly."""
        if self._ready:
            for line in news.changes(self._published, catalogue):
                self._tell(line)
        self._published = catalogue
        self._notices.tell(catalogue)
        names = {one.base_path: name for name, one in self.reconciler.configs.items()}
        names[self._home] = redaction.HIDDEN
        return self._frontends.publish(catalogue, names, self._engines.silent)

    def _publish_again(self) -> None:
        self.publish(self.reconciler.catalogue)

    async def acknowledged(self, number: int) -> None:
        await self._frontends.acknowledged(number)

    def _open(self) -> tuple[dict[str, str | None], list[messages.Opening]]:
        """Take all addresses before anything is started; those, and what each front end gets."""
        settings, listeners = self.settings, self._listeners
        rest = grpc = None
        if settings.rest_port is not None:
            port = listeners.open_tcp("rest", settings.host, settings.rest_port, "--rest_api_port")
            rest = f"http://{_address(settings.host, port)}"
        if settings.grpc_port is not None:
            port = listeners.open_tcp("grpc", settings.host, settings.grpc_port, "--port")
            grpc = _address(settings.host, port)
        if settings.rest_socket_path is not None:
            listeners.open_unix("rest", settings.rest_socket_path, "--unix")
        if settings.grpc_socket_path is not None:
            listeners.open_unix("grpc", settings.grpc_socket_path, "--grpc_socket_path")
        openings = [
            messages.Opening(
                listeners.descriptors("rest", index),
                listeners.descriptors("grpc", index),
                settings.rest_timeout,
                settings.metrics_path,
                settings.max_request,
                settings.frontends,
                settings.cors,
                settings.tls,
                settings.rest_tls,
                settings.access,
                settings.shared_memory,
            )
            for index in range(settings.frontends)
        ]
        for warning in config.exposure_warnings(settings, listeners.public):
            self._tell(warning)
        sockets = {
            "rest_socket": settings.rest_socket_path,
            "grpc_socket": settings.grpc_socket_path,
        }
        return {"rest": rest, "grpc": grpc, **sockets}, openings

    async def _serve(self, ready: Callable[[list[metrics.Row]], None]) -> None:
        configs = config.models(self.settings)
        self._roots = config.reload_roots(self.settings, configs)
        for flag, name in config.strangers(self.settings, configs):
            self._tell(f"{flag} {name}: there is no model of this name yet.")
        await self._engines.start(configs)
        await self.reconciler.replace(configs)
        await self.reconciler.settled()
        self._listeners.listen()
        await self._frontends.start()
        ready(await self._engines.rows())
        self._ready = True
        await asyncio.gather(self._watch_models(), self._watch_config(configs))

    async def _watch_models(self) -> None:
        """Look for new versions, and try failed ones again."""
        while True:
            await asyncio.sleep(self.settings.poll if self.settings.poll > 0 else _LOOK)
            if self.settings.poll <= 0:
                self.reconciler.retry()
            else:
                await self._survey()
                await self.reconciler.refresh()
            await self._engines.keep_only([*self.reconciler.configs.values()])

    async def _survey(self) -> None:
        """Look for models that have come to the directory, or left it."""
        if self.settings.path is None:
            return
        with contextlib.suppress(SubletError):
            configs = await asyncio.to_thread(config.models, self.settings)
            async with self._reloading:
                known = self.reconciler.configs
                if not self._reloaded and {one.name: one for one in configs} != known:
                    await self._engines.place(configs)
                    await self.reconciler.replace(configs)

    async def _watch_config(self, last: tuple[ModelConfig, ...]) -> None:
        """Serve what the config file says whenever it says something else than before."""
        last_error = ""
        while self.settings.model_config_file is not None and self.settings.config_poll > 0:
            await asyncio.sleep(self.settings.config_poll)
            wrong = ""
            try:
                configs = await asyncio.to_thread(config.models, self.settings)
                if configs != last:
                    async with self._reloading:
                        await self._replace(configs)
                    last = configs
            except SubletError as error:
                wrong = str(error)
            if wrong and wrong != last_error:
                self._tell(wrong)
            last_error = wrong

    async def _reload(self, asked: messages.Reload | messages.ChangeModel) -> tuple[int, str]:
        """What a client that may name models asks for; its answer."""
        try:
            async with self._reloading:
                configs = await asyncio.to_thread(self._asked, asked)
                self._known |= self.reconciler.configs
                await self._replace(configs)
                self._reloaded = True
            await self.reconciler.settled()
        except ServingError as error:
            return error.code, str(error)
        except SubletError as error:
            return Code.INVALID_ARGUMENT, str(error)
        except Exception as error:  # Whoever waits for the answer must get one.
            self._tell(f"a reload failed: {error!r}. This is a bug; please report it.")
            return Code.INTERNAL, "The server failed. Its log says how."
        failed = [
            f"{{name: {one.name} version: {number}}}"
            for one in configs
            if (model := self.reconciler.catalogue.models.get(one.name)) is not None
            for number, version in model.versions.items()
            if version.state is State.END and version.error
        ]
        if failed:
            return Code.UNKNOWN, f"Some models did not become available: {{{', '.join(failed)}}}"
        return Code.OK, ""

    def _asked(self, asked: messages.Reload | messages.ChangeModel) -> tuple[ModelConfig, ...]:
        """What is to be served then. Raises what is wrong with it. Reads the disk."""
        if isinstance(asked, messages.Reload):
            return config.decoded(self.settings, asked.config, self._roots)
        served = self.reconciler.configs
        rest = tuple(one for name, one in served.items() if name != asked.name)
        if asked.load:
            known = served.get(asked.name) or self._known.get(asked.name)
            return (*rest, known or config.named(self.settings, asked.name, self._roots))
        if asked.name not in served:
            raise ServingError(f"There is no model {asked.name}.", Code.NOT_FOUND)
        return rest

    async def _replace(self, configs: tuple[ModelConfig, ...]) -> None:
        """Serve these from now on. Raises what is wrong with their labels or devices before any
        change. The caller has `_reloading`."""
        for one in configs:
            versions.check_labels(
                self.reconciler.catalogue, one.name, one.labels, self.settings.labels_may_wait
            )
        await self._engines.place(configs)
        await self.reconciler.replace(configs)

    async def _exposition(self) -> str:
        tally, rows = await asyncio.gather(self._frontends.tally(), self._engines.rows())
        restarts = {"engine": self._engines.restarts, "front end": self._frontends.restarts}
        return metrics.exposition(tally, rows, restarts)

    async def _end(self) -> int:
        """Answer what has come, for a while or until the next signal."""
        first = self._signals[0]
        if not self._ready:
            return 128 + first
        self._listeners.close()
        self._signalled.clear()
        drain = asyncio.create_task(self._frontends.drain(self.settings.drain))
        again = asyncio.create_task(self._signalled.wait())
        try:
            either = {drain, again}
            done, _ = await asyncio.wait(either, timeout=_BRIEF, return_when="FIRST_COMPLETED")
            if not done:
                self._tell(
                    "ending: what has come is answered first, for "
                    f"{format_seconds(self.settings.drain)} at most; a second signal ends it now"
                )
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                return 128 + self._signals[-1]
            if not drain.result():
                span = format_seconds(self.settings.drain)
                self._tell(f"requests were still running after {span}")
                return 128 + first
            return 0
        finally:
            for task in (drain, again):
                task.cancel()
            await asyncio.gather(drain, again, return_exceptions=True)

    def _signal(self, number: int) -> None:
        self._signals.append(number)
        self._signalled.set()


def _end_anyway(code: int) -> None:
    """Have the process end, whatever keeps it: all others end with it."""
    last = threading.Timer(_LAST, os._exit, (code,))
    last.daemon = True
    last.start()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
