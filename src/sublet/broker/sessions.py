"""Connections of clients: bytes in, requests out; replies in, bytes out."""

import contextlib
import os
import socket
import struct
from typing import Protocol

import msgspec

from sublet.errors import SubletError
from sublet.hub import Hub
from sublet.wire import PROTOCOL
from sublet.wire.frames import Frames, at
from sublet.wire.messages import Refused, Reply, Request, Signal, decode_request, encode

_MOST_SESSIONS = 4096


class Session:
    """One client. After `close` it takes and gives nothing."""

    def __init__(self, hub: Hub, sock: socket.socket, desk: "Desk") -> None:
        self.frames = Frames(sock)
        self.job: int | None = None
        self.open = True
        self._hub = hub
        self._desk = desk
        hub.watch(sock, self._read)

    def reply(self, message: Reply) -> None:
        """Send, or queue what the client does not take yet."""
        if self.open:
            self.frames.put(encode(message))
            self._write()

    def refuse(self, error: SubletError) -> None:
        """Say no, and why."""
        self.reply(Refused(type(error).__name__, error.message, error.hint))

    def take_streams(self) -> list[int]:
        """The descriptors that came along; they are the caller's from here on."""
        streams, self.frames.descriptors = self.frames.descriptors, []
        return streams

    def close(self) -> None:
        """End the connection; the desk is told once."""
        if self.open:
            self.open = False
            self._hub.unwatch(self.frames.sock)
            self.frames.close()
            self._desk.left(self)

    def _read(self) -> None:
        if not self.open:
            return
        alive = self.frames.fill()
        try:
            while self.open and (data := self.frames.take()) is not None:
                self._desk.asked(self, _decode(data))
        except SubletError as error:
            self.refuse(error)
            alive = False
        except msgspec.MsgspecError as error:
            self.reply(Refused("BadRequest", f"The broker cannot read that message: {error}."))
            alive = False
        if not alive:
            self.close()

    def _write(self) -> None:
        try:
            done = self.frames.flush()
        except OSError:
            self.close()
            return
        self._hub.when_writable(self.frames.sock, None if done else self._write)


class Desk(Protocol):
    """Who deals with what clients want."""

    def asked(self, session: Session, request: Request) -> None:
        """A request has come in."""

    def left(self, session: Session) -> None:
        """The client is gone."""


class Door:
    """The socket that clients knock at: private to the user, and checked again for each."""

    def __init__(self, hub: Hub, path: str, desk: Desk) -> None:
        self._hub = hub
        self._path = path
        self._desk = desk
        self.sessions: set[Session] = set()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _remove(path)
        before = os.umask(0o177)
        try:
            at(path, self._sock.bind)
        finally:
            os.umask(before)
        self._sock.listen(512)
        self._sock.setblocking(False)
        hub.watch(self._sock, self._accept)

    def close(self) -> None:
        """Take the socket away; sessions stay."""
        self._hub.unwatch(self._sock)
        self._sock.close()
        _remove(self._path)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        self.sessions = {session for session in self.sessions if session.open}
        if _peer(sock) != os.getuid() or len(self.sessions) >= _MOST_SESSIONS:
            sock.close()
            return
        sock.setblocking(False)
        self.sessions.add(Session(self._hub, sock, self._desk))


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _peer(sock: socket.socket) -> int:
    """The user at the other end."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", data)
    return int(uid)


def _decode(data: bytes) -> Request:
    request = decode_request(data)
    if not isinstance(request, Signal) and request.protocol != PROTOCOL:
        raise SubletError(
            f"This broker speaks protocol {PROTOCOL}, the command {request.protocol}.",
            "Run `sublet down` with the other version, then try again.",
        )
    return request
