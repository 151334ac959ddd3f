"""A front end: the process that speaks with clients. It never loads a model.

Started by the server with one end of a link, and the listening sockets. It ends when the link
does, so none outlives its server; signals from a terminal or a service manager are the server's
to hear.
"""

import asyncio
import socket

from sublet.serving import link as say
from sublet.serving.clerk import Clerk

_TELL = 1.0
"""Seconds between two reports of what was counted."""


class FrontEnd:
    """What the server has asked for, and the servers of the two protocols."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._clerk = Clerk()
        self._link: say.Link
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: say.Tally | None = None

    async def run(self) -> None:
        """Until the server says drain, or has gone."""
        self._link = await say.Link.over(self._sock, say.ToFrontEnd, self._heard, self._ended.set)
        self._clerk.link = self._link
        await self._ended.wait()
        self._clerk.close()

    def _heard(self, message: say.ToFrontEnd) -> None:
        match message:
            case say.Opening():
                self._do(self._open(message))
            case say.News():
                self._do(self._news(message))
            case say.Drain():
                self._do(self._drain(message.seconds))
            case say.AskTally(number):
                self._link.send(say.Counted(number, self._clerk.tally))
            case say.Reloaded() | say.Exposition():
                self._clerk.answered(message)
