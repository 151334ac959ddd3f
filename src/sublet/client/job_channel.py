"""A job in the foreground whose program has a channel to its owner.

What `sublet.Pool` and `sublet.Engine` share: descriptor 3 of the program is the other end of the
channel, its standard input is empty, and it writes where its owner does or to a given descriptor.
"""

import os
import socket
from typing import TYPE_CHECKING

from sublet.client.job_follower import JobFollower
from sublet.home import Home

if TYPE_CHECKING:
    from sublet.client.job_follower import Listener
    from sublet.domain.job_fields import JobFields
    from sublet.wire.messages import Ended


class JobChannel:
    """A job that was sent, and the channel to it. Used by one thread at a time."""

    def __init__(self, spec: "JobFields", listener: "Listener", output: int | None = None) -> None:
        self.channel, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._null = -1
        try:
            self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            out, err = (1, 2) if output is None else (output, output)
            streams = [self._null, out, err, self.theirs.fileno()]
            self._follower = JobFollower(spec, Home.find(), listener, streams)
        except BaseException:
            self._close_streams()
            raise

    @property
    def job(self) -> int | None:
        """Its number at the broker, once that is known."""
        return self._follower.job

    def fileno(self) -> int:
        """The connection to the broker; it changes when the broker does."""
        return self._follower.fileno()

    def hear(self) -> "Ended | None":
        """Take in what the broker says; how the job ended, once it has. Raises what was refused."""
        return self._follower.hear()

    def close(self) -> None:
        """Hang up; a program that still lives is ended by its keeper."""
        self._follower.close()
        self._close_streams()

    def _close_streams(self) -> None:
        self.channel.close()
        self.theirs.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
