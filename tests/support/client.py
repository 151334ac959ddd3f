"""A client at the other end of a real connection, without a process of its own."""

import socket

from sublet.broker.connections import ClientConnection
from sublet.reactor import Reactor
from sublet.wire.frames import Frames
from sublet.wire.messages import Reply, Request, decode_reply


class Client:
    """One end of a connection; `session` is the broker's."""

    def __init__(self, reactor: Reactor) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.connection = ClientConnection(reactor, theirs, self)
        self.frames = Frames(ours)

    def handle(self, connection: ClientConnection, request: Request) -> None:
        raise AssertionError("nobody asks through this end")

    def disconnected(self, connection: ClientConnection) -> None:
        """Nothing depends on it."""

    def heard(self) -> list[Reply]:
        """What the broker has said since this was last asked."""
        self.frames.fill()
        replies = []
        while (data := self.frames.take()) is not None:
            replies.append(decode_reply(data))
        return replies

    def close(self) -> None:
        """Close both ends."""
        self.connection.close()
        self.frames.close()
