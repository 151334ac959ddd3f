"""The ports of gangs, held from the grant until each task's keeper holds its own."""

import contextlib
import socket

from sublet.domain.job import Gang
from sublet.keeper import held_port


class Ports:
    """Holds a port for each task that was granted a lease and does not run yet."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def choose(self, gang: Gang) -> tuple[int, ...]:
        """A port for each task, held from here on; 0 where there is none to be had."""
        found = []
        for number in gang.numbers:
            self.release(number)
            try:
                self._held[number] = held_port.hold()
            except OSError:  # No descriptors are left: the task cannot be started, and says so.
                found.append(0)
            else:
                found.append(held_port.number(self._held[number]))
        return tuple(found)

    def keep(self, number: int, port: int) -> bool:
        """Hold the port of a task that an earlier broker has chosen; False if somebody else has
        it by now."""
        if number in self._held:
            return held_port.number(self._held[number]) == port
        if not port:
            return False
        with contextlib.suppress(OSError):
            self._held[number] = held_port.hold(port)
        return number in self._held

    def close(self) -> None:
        """Give up all ports that are held."""
        for number in list(self._held):
            self.release(number)

    def release(self, number: int) -> None:
        """The task's keeper holds its port, or nobody needs it any more."""
        if (held := self._held.pop(number, None)) is not None:
            held.close()
