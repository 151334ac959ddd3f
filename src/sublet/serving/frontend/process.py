"""A front end: the process that speaks with clients. It never loads a model.

Started by the server with one end of a link and the listening sockets. It ends when the link does,
so none outlives its server. Signals of a terminal or a service manager are the server's to hear.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
from typing import Any

from sublet import descriptors
from sublet.serving import frontend_link as messages
from sublet.serving import tls
from sublet.serving.frontend import request_traces
from sublet.serving.frontend.engine_router import EngineRouter
from sublet.serving.frontend.limits import CallBudget, Limits, places, share
from sublet.serving.frontend.protocol_server import ProtocolServer
from sublet.serving.frontend.shared_memory import Regions
from sublet.text import plain


class FrontEnd:
    """What the server has asked for, and the servers of the two protocols."""

    def __init__(self) -> None:
        self._router = EngineRouter()
        self._servers: list[ProtocolServer[Any]] = []
        self._ended = asyncio.Event()

    async def serve(self, sock: socket.socket) -> None:
        """Serve until the server has it drained, or has gone."""
        self._router.link = await messages.Link.over(sock, self._answer, self._ended.set)
        await self._ended.wait()
        self._router.close()

    async def _answer(self, question: messages.Message) -> messages.Message:
        match question:
            case messages.Opening():
                return await self._open(question)
            case messages.CatalogueUpdate(catalogue, names, silent):
                self._router.names, self._router.silent = names, frozenset(silent)
                await self._router.update(catalogue)
                self._announce_readiness()
                return messages.Done()
            case messages.Drain(seconds):
                await asyncio.gather(*(server.drain(seconds) for server in self._servers))
                # When the answer is out: its end is ours.
                asyncio.get_running_loop().call_soon(self._router.link.close)
        self._router.tidy()
        return messages.Counted(self._router.tally)

    async def _open(self, opening: messages.Opening) -> messages.Opened:
        self._router.budget = CallBudget(share(opening.frontends))
        self._router.traces, fault = request_traces.open_if_asked()
        if fault:
            logging.getLogger(__name__).warning(fault)
        regions = Regions() if opening.shared_memory else None
        limits = _limits(opening)
        try:
            if opening.rest:
                self._servers.append(await _rest(self._router, opening, limits, regions))
            if opening.grpc:
                self._servers.append(await _grpc(self._router, opening, limits, regions))
        except Exception as error:
            return messages.Opened(f"{type(error).__name__}: {error}")
        self._announce_readiness()
        # What was loaded to get here stays: collections need not look at it again.
        gc.collect()
        gc.freeze()
        return messages.Opened()

    def _announce_readiness(self) -> None:
        for server in self._servers:
            server.change(not self._router.unready())


def _limits(opening: messages.Opening) -> Limits:
    usual = Limits()
    body = opening.max_request or usual.body
    protocols = bool(opening.rest) + bool(opening.grpc)
    return Limits(
        body=body,
        bodies=max(body, usual.bodies // opening.frontends),
        connections=places(usual.connections, protocols, descriptors.limit()),
        call=opening.rest_timeout,
    )


async def _rest(
    router: EngineRouter, opening: messages.Opening, limits: Limits, regions: Regions | None
) -> ProtocolServer[Any]:
    from sublet.serving.frontend.rest.server import Server

    server = Server(router, limits, opening.metrics_path, opening.cors, opening.access, regions)
    secure = None if opening.rest_tls is None else tls.context(opening.rest_tls, tls.REST)
    await server.listen(map(_socket, opening.rest), secure)
    return server


async def _grpc(
    router: EngineRouter, opening: messages.Opening, limits: Limits, regions: Regions | None
) -> ProtocolServer[Any]:
    from sublet.serving.frontend.grpc.calls import LARGEST_MESSAGE
    from sublet.serving.frontend.grpc.server import GrpcServer

    largest = min(opening.max_request or LARGEST_MESSAGE, LARGEST_MESSAGE)
    server = GrpcServer(router, largest, share(opening.frontends), limits, opening.access, regions)
    secure = None if opening.tls is None else tls.context(opening.tls)
    await server.listen(map(_socket, opening.grpc), secure)
    return server


def _socket(number: int) -> socket.socket:
    return socket.socket(fileno=number)


class _Plain(logging.Formatter):
    """Makes log lines safe for a terminal: a client may have written parts of them."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).split("\n")))


def main() -> None:
    """Be a front end on the link whose descriptor is named on the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptors.raise_limit()
    said = logging.StreamHandler()
    said.setFormatter(_Plain("sublet: %(message)s"))
    logging.basicConfig(handlers=[said])
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(FrontEnd().serve(sock))


if __name__ == "__main__":
    main()
