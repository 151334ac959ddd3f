"""What changes, sent to every page that is open.

One thread follows the broker for all pages, while there is one. A page is sent what is different
from what it was sent last, so one that is slow gets more at a time and never a backlog. When the
broker ends, the pages are told; nobody here starts another: `sublet down` means it.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from sublet.client.connection import connect
from sublet.client.snapshot_feed import View, follow_connection
from sublet.errors import SubletError
from sublet.home import Home
from sublet.page.job_rows import shown_job
from sublet.page.usage import Usage, read_usage_since
from sublet.wire.rows import DeviceRow, JobRow

_LOOK_FOR_BROKER = 0.5
"""Seconds between looks whether there is a broker again."""
_SIGN_OF_LIFE = 15.0
"""Seconds after which a page hears something even if nothing has changed."""


class News(Struct, frozen=True):
    """What a page is told."""

    broker: bool
    """Whether a broker runs; if not, all that is shown is as it was last."""
    fault: str = ""
    """Why one that runs cannot be followed, if that is so."""
    whole: bool = False
    """Whether devices and jobs replace all that was sent before."""
    devices: tuple[DeviceRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    gone: tuple[int, ...] = ()
    left_out: int = 0
    usage: Usage | None = None


class Live:
    """The latest view of the broker, and the pages that wait for the next."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._view: View | None = None
        """None if no broker runs."""
        self._fault = ""
        """Why a broker that runs cannot be followed. Set before it is published that none is."""
        self._known = False
        """Whether it is known if one runs; not before somebody has looked."""
        self._changed = asyncio.Event()
        self._pages = 0
        self._wanted = threading.Event()
        """Set while a page is open."""
        self._thread: threading.Thread | None = None
        self._closed = False

    async def follow(self) -> AsyncIterator[bytes]:
        """News for one page, as server-sent events, until the server ends."""
        self._pages += 1
        self._wanted.set()
        self._start()
        seen: View | None = None
        first = True
        at = time.time()  # What was before, the page asks for itself.
        try:
            while not self._closed:
                changed, view = self._changed, self._view
                if self._known and (view is not seen or first):
                    yield _event(_news(seen, view, self._fault))
                    seen = view
                    if view is not None and not first:
                        usage = await asyncio.to_thread(read_usage_since, self._home, at)
                        if usage is not None:
                            at = usage.at
                            yield _event(News(True, left_out=view.left_out, usage=usage))
                    first = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _SIGN_OF_LIFE)
                    continue
                yield b": nothing new\n\n"
        finally:
            self._pages -= 1
            if not self._pages:
                self._wanted.clear()

    def close(self) -> None:
        """End all that follow."""
        self._closed = True
        self._wanted.set()
        self._wake()

    def _start(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._watch, args=(loop,), daemon=True)
            self._thread.start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Follow one broker after the other, while a page is open. Runs in a thread of its own."""
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            while not self._closed:
                self._wanted.wait()
                self._watch_one(loop)
                loop.call_soon_threadsafe(self._publish, None)
                time.sleep(_LOOK_FOR_BROKER)

    def _watch_one(self, loop: asyncio.AbstractEventLoop) -> None:
        """Follow a broker until it ends."""
        self._fault = ""
        try:
            connection = connect(self._home)
            if connection is None:
                return
            with contextlib.closing(connection):
                for view in follow_connection(connection):
                    if self._closed or not self._wanted.is_set():
                        return
                    loop.call_soon_threadsafe(self._publish, view)
        except SubletError as error:  # It speaks another version's protocol, for example.
            self._fault = f"{error.message} {error.hint}".strip()
        except OSError:
            return  # It was killed.

    def _publish(self, view: View | None) -> None:
        known = bool(self._pages)  # While no page is open nobody looks.
        if view is not self._view or known != self._known:
            self._view, self._known = view, known
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _news(before: View | None, now: View | None, fault: str) -> News:
    """What has changed between two views. Rows that have not are the same objects."""
    if now is None:
        return News(False, fault)
    known = before or View(0, {}, {})
    return News(
        True,
        "",
        before is None,
        tuple(row for name, row in now.devices.items() if known.devices.get(name) is not row),
        tuple(shown_job(row) for id, row in now.jobs.items() if known.jobs.get(id) is not row),
        tuple(known.jobs.keys() - now.jobs.keys()),
        now.left_out,
    )


def _event(news: News) -> bytes:
    return b"data: " + msgspec.json.encode(news) + b"\n\n"
