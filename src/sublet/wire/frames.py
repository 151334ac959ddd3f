"""Messages over a Unix stream socket: four bytes of length, then msgpack; descriptors ride along.

One `Frames` serves a blocking client and the broker's loop alike: `fill` reads what is there,
`take` gives the next whole message.
"""

import array
import os
import socket
import struct

from sublet.errors import BadRequest, WorldError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct(">I")
LARGEST = 16 << 20
"""Bytes of a request."""
LARGEST_REPLY = 1 << 30
_MOST_DESCRIPTORS = 8


class Frames:
    """The two directions of one connection, as bytes. `largest` is the longest message it reads."""

    def __init__(self, sock: socket.socket, largest: int = LARGEST) -> None:
        self.sock = sock
        self.descriptors: list[int] = []
        self._largest = largest
        self._in = bytearray()
        self._out = bytearray()

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not taken yet."""
        return len(self._out)

    def fill(self) -> bool:
        """Read once; False at the end of the stream. Raises if too many descriptors come along."""
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(1 << 18, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                self.descriptors.extend(numbers)
        if len(self.descriptors) > _MOST_DESCRIPTORS:
            raise BadRequest(f"More than {_MOST_DESCRIPTORS} descriptors came with a request.")
        if flags & socket.MSG_CTRUNC:
            raise WorldError(
                "The broker can take no more file descriptors.",
                "End some of the commands that wait, then try again.",
            )
        self._in += data
        return bool(data)

    def take(self) -> bytes | None:
        """The next whole message, or None until more has been read."""
        if len(self._in) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._in)
        if length > self._largest:
            raise BadRequest(f"A message of {length} bytes is more than Sublet takes.")
        end = _LENGTH.size + length
        if len(self._in) < end:
            return None
        message = bytes(self._in[_LENGTH.size : end])
        del self._in[:end]
        return message

    def put(self, message: bytes) -> None:
        """Queue a message; `flush` sends it."""
        self._out += _LENGTH.pack(len(message)) + message

    def flush(self) -> bool:
        """Send what can be sent; True when nothing is left. Raises OSError if nobody reads."""
        while self._out:
            try:
                sent = self.sock.send(self._out)
            except BlockingIOError:
                return False
            del self._out[:sent]
        return True

    def send(self, message: bytes, descriptors: list[int] | None = None) -> None:
        """Send one request on a blocking socket; descriptors go with its first byte."""
        if len(message) > LARGEST:
            raise BadRequest(
                f"The request has {len(message) >> 20} MiB; the broker takes at most "
                f"{LARGEST >> 20} MiB.",
                "Nothing was sent. Hand large data over in a file, not in arguments or variables.",
            )
        data = _LENGTH.pack(len(message)) + message
        if descriptors:
            sent = socket.send_fds(self.sock, [data], descriptors)
            data = data[sent:]
        self.sock.sendall(data)

    def close(self) -> None:
        """Close the socket and whatever descriptors nobody took."""
        for number in self.descriptors:
            os.close(number)
        self.descriptors.clear()
        self.sock.close()


def short_path(directory: int, name: str) -> str:
    """A name for a socket that fits the kernel's 108 bytes, however deep its directory is."""
    return f"/proc/self/fd/{directory}/{name}"


def at(path: str, act: "Callable[[str], object]") -> None:
    """Call `act` (bind or connect) with a short name for `path`."""
    parent, name = os.path.split(path)
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(short_path(directory, name))
    finally:
        os.close(directory)
