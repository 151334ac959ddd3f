"""A keeper's connections: to brokers, and to processes of its own tree that ask for a broker."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

from ..formats import attempt_files, packets
from . import process_tree


def _are_processors(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "stop": lambda value: attempt_files.is_number(value, 0, 1e9),
    "why": lambda value: isinstance(value, str),
    "pause": lambda value: isinstance(value, bool),
    "duty": lambda value: attempt_files.is_number(value, 0, 1),
    "processors": _are_processors,
    "signal": lambda value: type(value) is int and value in signal.valid_signals(),
    "broker": lambda value: isinstance(value, str),
    "log": lambda value: isinstance(value, str),
}
"""The fields of requests, and which values are valid; everything else is ignored."""
_ROOT = 0
_MOST_LINKS = 64
"""Connections at a time, of brokers and others."""

Request = dict[str, Any]


class BrokerLinks:
    """Sends reports to every broker, and receives requests; never waits for anybody to read.

    `greeting` is what a broker hears that connects later. `obey` is called with the requests of
    brokers, `start_broker` with those of our own tree, which may ask for nothing else.
    """

    def __init__(
        self,
        directory: str,
        first: socket.socket,
        greeting: Callable[[], dict[str, Any]],
        obey: Callable[[Request], None],
        start_broker: Callable[[str, str, list[int]], None],
    ) -> None:
        self._directory = directory
        self._greeting = greeting
        self._obey = obey
        self._start_broker = start_broker
        self._links = {first.fileno(): packets.Link(first)}
        self._from_tree: set[int] = set()
        self._listener: socket.socket | None = None

    def send(self, packet: dict[str, Any], slot: str = "") -> None:
        """Send a report to every broker. One that does not read now gets it later, and of several
        with the same slot only the last."""
        for number, link in self._links.items():
            if number not in self._from_tree:
                # A broker that is gone may still have sent something: it is removed by `receive`.
                link.put(packet, slot)

    def register(self, poll: select.poll) -> None:
        """Watch the connections, and listen for new ones."""
        if self._listener is None:
            self._listener = self._listen()
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for number, link in self._links.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if link.waiting else 0))

    def handle(self, number: int, events: int) -> None:
        """Do what a descriptor is ready for; others' descriptors are ignored."""
        if self._listener is not None and number == self._listener.fileno():
            self._accept(self._listener)
        elif (link := self._links.get(number)) is not None:
            if events & select.POLLOUT:
                link.flush()
            if events & ~select.POLLOUT:
                self._receive(number, link)

    def _listen(self) -> socket.socket | None:
        """A socket where the next broker finds us. On a full disk there is none: tried again."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # The path may be too long for a socket's address.
                listener.bind(f"/proc/self/fd/{directory}/keeper.sock")
            finally:
                os.close(directory)
            listener.listen(16)
            listener.setblocking(False)
        except OSError:
            listener.close()
            return None
        return listener

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        pid, user = packets.peer(sock)
        if user not in (os.getuid(), _ROOT) or len(self._links) >= _MOST_LINKS:
            sock.close()
            return
        link = self._links[sock.fileno()] = packets.Link(sock)
        if pid in process_tree.descendants(os.getpid()):
            self._from_tree.add(sock.fileno())
        else:
            link.put(self._greeting())

    def _receive(self, number: int, link: packets.Link) -> None:
        received = link.receive()
        if received is None:
            del self._links[number]
            self._from_tree.discard(number)
            link.close()
            return
        packet, descriptors = received
        request = {
            name: packet[name]
            for name, is_valid in _FIELDS.items()
            if name in packet and is_valid(packet[name])
        }
        if "broker" in request and "log" in request:
            self._start_broker(request["broker"], request["log"], descriptors)
        packets.close(descriptors)
        if number not in self._from_tree:
            self._obey(request)
