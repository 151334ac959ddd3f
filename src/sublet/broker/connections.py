"""Connections of clients: bytes in, requests out; replies in, bytes out."""

import contextlib
import os
import socket
import struct
from typing import Protocol

import msgspec

from sublet import descriptors
from sublet.broker import log
from sublet.channel.peers import SHORT, Spare
from sublet.errors import BadRequest, InternalError, SubletError, WorldError
from sublet.reactor import Reactor
from sublet.wire import PROTOCOL
from sublet.wire.frames import Frames, at
from sublet.wire.messages import Down, Refused, Reply, Request, Signal, decode_request, encode

MAX_CONNECTIONS = 4096
_MOST_UNSENT = 256 << 20
"""Bytes of replies that wait for a client who does not read."""
_PAUSE = 1.0
"""Seconds after which it is tried again when not even hanging up is possible."""


class ClientConnection:
    """The connection of one client. After `close` it neither reads nor sends."""

    def __init__(self, reactor: Reactor, sock: socket.socket, handler: "RequestHandler") -> None:
        self.frames = Frames(sock)
        self.job: int | None = None
        self.open = True
        self.silent = True
        """Whether nothing was asked yet."""
        self._reactor = reactor
        self._handler = handler
        reactor.watch(sock, self._read)

    def reply(self, message: Reply) -> None:
        """Send, or queue what the client does not take yet."""
        if self.open:
            self.frames.put(encode(message))
            self._write()
        if self.open and self.frames.unsent > _MOST_UNSENT:
            self.close()

    def refuse(self, error: SubletError) -> None:
        """Send a refusal with the error's kind, message and hint."""
        self.reply(Refused(type(error).__name__, error.message, error.hint))

    def take_streams(self) -> list[int]:
        """The descriptors that came along; they are the caller's from here on."""
        streams, self.frames.descriptors = self.frames.descriptors, []
        return streams

    def close(self) -> None:
        """End the connection; the handler is told once."""
        if self.open:
            self.open = False
            self._reactor.unwatch(self.frames.sock)
            self.frames.close()
            try:
                self._handler.disconnected(self)
            except Exception:
                log.note_fault("a client that left was not seen off")

    def _read(self) -> None:
        """Read what a client sends. Nonsense ends this connection and nothing else."""
        if not self.open:
            return
        alive = False
        try:
            alive = self._receive()
        except SubletError as error:
            self.refuse(error)
        except OSError:
            pass  # The connection is broken.
        except Exception as error:
            log.note_fault("a request could not be dealt with")
            bug = f"The broker could not deal with that: {error!r}."
            self.refuse(InternalError(bug, "Please report it; broker.log has the details."))
        if not alive:
            self.close()

    def _receive(self) -> bool:
        """Deal with what is there; False at the end of the stream."""
        alive = self.frames.fill()
        if self.frames.descriptors and descriptors.scarce(max(self.frames.descriptors)):
            raise _full()
        while self.open and (data := self.frames.take()) is not None:
            self.silent = False
            self._handler.handle(self, _decode(data))
        return alive

    def _write(self) -> None:
        try:
            done = self.frames.flush()
        except OSError:
            self.close()
            return
        self._reactor.when_writable(self.frames.sock, None if done else self._write)


class RequestHandler(Protocol):
    """Deals with the requests of clients."""

    def handle(self, connection: ClientConnection, request: Request) -> None:
        """Deal with a request that has come in."""

    def disconnected(self, connection: ClientConnection) -> None:
        """The client is gone; called once for each connection."""


class Listener:
    """The socket that clients connect to: private to the user, and each peer is checked again.

    There may be as many connections as there are descriptors, less those that our own work needs.
    When there are no more, a new one takes the place of one that has asked nothing, or is refused.
    """

    def __init__(self, reactor: Reactor, path: str, handler: RequestHandler) -> None:
        self._reactor = reactor
        self._path = path
        self._handler = handler
        self._connections: dict[ClientConnection, None] = {}
        """In the order they came."""
        self._spare = Spare()
        self._open()

    def _open(self) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _remove(self._path)
        before = os.umask(0o177)
        try:
            at(self._path, self._sock.bind)
        finally:
            os.umask(before)
        self._file = os.stat(self._path)
        self._sock.listen(512)
        self._sock.setblocking(False)
        self._reactor.watch(self._sock, self._accept)

    def check(self) -> None:
        """Make the socket's file again if it was removed. Only for the holder of the lock."""
        if not self._is_there():
            with contextlib.suppress(OSError):
                self._reactor.unwatch(self._sock)
                self._sock.close()
                self._open()

    def close(self) -> None:
        """Take the socket away, unless the name is another broker's by now; sessions stay."""
        self._reactor.unwatch(self._sock)
        self._sock.close()
        self._spare.close()
        if self._is_there():
            _remove(self._path)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), self._file)
        except OSError:
            return False

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            if error.errno in SHORT and not self._spare.turn_away(self._sock):
                # It would wake us again and again.
                self._reactor.unwatch(self._sock)
                self._reactor.call_later(_PAUSE, self._listen)
            return
        if _peer(sock) != os.getuid():
            sock.close()
            return
        sock.setblocking(False)
        self._connections = {
            connection: None for connection in self._connections if connection.open
        }
        full = len(self._connections) >= MAX_CONNECTIONS or descriptors.scarce(sock.fileno())
        silent = next((one for one in self._connections if one.silent), None) if full else None
        if silent is not None:
            silent.refuse(_full())
            silent.close()
        connection = ClientConnection(self._reactor, sock, self._handler)
        if full and silent is None:
            connection.refuse(_full())
            connection.close()
            return
        self._connections[connection] = None

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._reactor.watch(self._sock, self._accept)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _peer(sock: socket.socket) -> int:
    """The user at the other end."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    return int(uid)


def _decode(data: bytes) -> Request:
    try:
        request = decode_request(data)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"The broker cannot read that message: {error}.") from error
    # After an upgrade, the new `sublet down` ends the old broker.
    if not isinstance(request, Signal | Down) and request.protocol != PROTOCOL:
        raise SubletError(
            "The broker that runs is of another version of Sublet than this command (protocol "
            f"{PROTOCOL}, not {request.protocol}).",
            "Run `sublet down`, then try again: programs keep running.",
        )
    return request


def _full() -> WorldError:
    return WorldError(
        f"The broker has as many clients as it can have (`ulimit -n` is {descriptors.limit()}).",
        "End some of the commands that wait, or `sublet submit` them instead.",
    )
