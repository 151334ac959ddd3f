"""A client at the other end of a real connection, without a process of its own."""

import socket

from sublet.broker.sessions import Session
from sublet.hub import Hub
from sublet.wire.frames import Frames
from sublet.wire.messages import Reply, Request, decode_reply


class Client:
    """One end of a connection; `session` is the broker's."""

    def __init__(self, hub: Hub) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.session = Session(hub, theirs, self)
        self.frames = Frames(ours)

    def asked(self, session: Session, request: Request) -> None:
        raise AssertionError("nobody asks through this end")

    def left(self, session: Session) -> None:
        """Nothing depends on it."""

    def heard(self) -> list[Reply]:
        """What the broker has said since this was last asked."""
        self.frames.fill()
        replies = []
        while (data := self.frames.take()) is not None:
            replies.append(decode_reply(data))
        return replies

    def close(self) -> None:
        """Hang up."""
        self.session.close()
        self.frames.close()
