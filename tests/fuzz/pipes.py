"""A transport that goes nowhere, and an event loop for protocols that are fed by hand."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class Pipe:
    """Keeps what is written. Says that it is closing once it was closed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.written += piece

    def close(self) -> None:
        self.closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class Errors(logging.Handler):
    """What is logged as an error is a fault: something has happened that should not."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[logging.LogRecord] = []
        logging.getLogger("sublet").addHandler(self)
        logging.getLogger("asyncio").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)

    def check(self) -> None:
        """Raise the first of the errors."""
        seen, self.seen = self.seen, []
        for record in seen:
            error = record.exc_info[1] if record.exc_info else None
            raise AssertionError(record.getMessage()) from error

    def close(self) -> None:
        logging.getLogger("sublet").removeHandler(self)
        logging.getLogger("asyncio").removeHandler(self)
        super().close()


class Stage:
    """An event loop in which one thing is done after the other."""

    def __init__(self) -> None:
        self.errors = Errors()
        self._loop = asyncio.new_event_loop()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def whole() -> T:
            return await work()

        found = self._loop.run_until_complete(whole())
        self.errors.check()
        return found

    def close(self) -> None:
        self.errors.close()
        self._loop.close()


async def settle() -> None:
    """Let everything happen that does not wait for anything."""
    for _ in range(20):
        await asyncio.sleep(0)


def pieces(data: bytes) -> list[bytes]:
    """The same in pieces, as a network may bring it; which ones follows from the data."""
    found, at = [], 0
    step = sum(data[:7]) % 97
    while at < len(data):
        size = (step * 31 + at) % 1500 + 1 if step % 3 else len(data)
        found.append(data[at : at + size])
        at += size
    return found
