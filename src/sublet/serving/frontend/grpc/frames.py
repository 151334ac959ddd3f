"""The frames of HTTP/2 (RFC 9113): their kinds, flags and errors, how one is written and read."""

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = Struct(">HBBBI")
"""Length in three bytes (two and one), kind, flags, stream."""
HEAD_SIZE = 9

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

LARGEST_WINDOW = 2**31 - 1
LAST_STREAM = 2**31 - 1


class Setting(IntEnum):
    """What each side tells the other about itself."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Fault(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The client broke the protocol so that the connection cannot go on."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class StreamFault(Exception):
    """The client broke the protocol in one stream only."""

    def __init__(self, stream: int, fault: Fault) -> None:
        super().__init__(stream, fault)
        self.stream = stream
        self.fault = fault


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    payload = b"".join(
        key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()
    )
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset(stream: int, fault: Fault) -> bytes:
    return frame(RST_STREAM, 0, stream, fault.to_bytes(4, "big"))


def goaway(last: int, fault: Fault, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + fault.to_bytes(4, "big") + text.encode())


def read_settings(payload: bytes) -> dict[int, int]:
    """What a SETTINGS frame says. Raises ConnectionFault for what a client must not say."""
    if len(payload) % 6:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    values = {}
    for at in range(0, len(payload), 6):
        key = int.from_bytes(payload[at : at + 2], "big")
        value = values[key] = int.from_bytes(payload[at + 2 : at + 6], "big")
        if key == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise ConnectionFault(Fault.FLOW_CONTROL_ERROR, "window too large")
        if key == Setting.MAX_FRAME_SIZE and not 16384 <= value < 1 << 24:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(Fault.PROTOCOL_ERROR, "ENABLE_PUSH is no truth value")
    return values


def unpadded(payload: bytes, skipped: int = 0) -> bytes:
    """A payload without its padding, and without `skipped` bytes before it."""
    if not payload or payload[0] + 1 + skipped > len(payload):
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "more padding than there is room")
    return payload[1 + skipped : len(payload) - payload[0]]
