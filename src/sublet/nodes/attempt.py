"""One attempt on this node: a job of the node's broker, whose client is the agent.

So it ends when the agent does, and the agent ends when Ray holds the node for dead.
"""

import contextlib
import hashlib
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sublet.client.job_follower import JobFollower
from sublet.client.jobs import act
from sublet.domain.job import Outcome
from sublet.errors import SubletError
from sublet.home import Home
from sublet.nodes.limits import NO_ROOM
from sublet.wire.messages import Granted, Retried, Started

CHUNK = 1 << 18


def public_name(mark: str) -> str:
    """A name for an attempt that does not tell its secret."""
    return hashlib.blake2b(mark.encode(), digest_size=16).hexdigest()


class Hold(Protocol):
    """What Ray gives to nobody else while an attempt runs."""

    def release(self) -> None:
        """Let Ray have it again."""


class NodeAttempt:
    """Follows its job in a thread of its own. `changed` is called whenever there is news."""

    def __init__(
        self,
        mark: str,
        home: str,
        place: Path,
        spec: dict[str, Any],
        foreground: bool,
        hold: Callable[[], "Hold | str"],
        changed: Callable[[], None],
    ) -> None:
        self.mark = mark
        self.home = home
        self.foreground = foreground
        self.made = self.heard = time.monotonic()
        """When somebody last asked for it."""
        self.sequence = 0
        self.job: int | None = None
        self.how = ""
        self.pid = 0
        self.end: dict[str, Any] | None = None
        self.over = 0.0
        """When it had ended."""
        self._spec = spec
        self._hold = hold
        self._changed = changed
        self._granted = self._given_up = self._stopped = False
        self._paused = False
        self._waits = ""
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = public_name(mark)
        self._paths = [place / f"{name}.out", place / f"{name}.err"]
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._outputs = [os.open(path, flags, 0o600) for path in self._paths]
        self._wake, self._waker = os.pipe()
        self._signals: list[int] = []
        self._thread = threading.Thread(target=self._run, name=mark[:8], daemon=True)

    def start(self) -> None:
        """Ask the node's broker for its lease."""
        self._thread.start()

    def sizes(self) -> tuple[int, int]:
        """How much it has written so far."""
        return (os.fstat(self._outputs[0]).st_size, os.fstat(self._outputs[1]).st_size)

    def output(self, stream: int, offset: int) -> bytes:
        """What comes after this offset in one of its streams."""
        return os.pread(self._outputs[stream], CHUNK, offset)

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        self._signals.append(number)
        self._ring()

    def stop(self) -> None:
        """End the program: SIGTERM, its grace, SIGKILL."""
        self._stopped = True
        self._ring()

    def pause(self, on: bool) -> None:
        """Stop the program where it is, or let it go on."""
        if self.job is not None and on != self._paused:
            with contextlib.suppress(SubletError):
                act("pause" if on else "resume", [self.job])
                self._paused = on

    def close(self) -> None:
        """Forget an attempt that has ended, and what it has written."""
        for descriptor, path in zip(self._outputs, self._paths, strict=True):
            os.close(descriptor)
            path.unlink(missing_ok=True)
        os.close(self._wake)
        os.close(self._waker)

    def waits(self, reason: str) -> None:
        """The node's broker has no room for it yet."""
        self._granted, self._waits = False, reason
        self._news()

    def granted(self, message: Granted) -> None:
        """It has its lease."""
        self._granted = True

    def started(self, message: Started) -> None:
        """Its program runs."""
        self.how, self.pid = message.how, message.pid
        self._news()

    def lacks_memory(self, reason: str) -> None:
        """What the program itself says of it is what its user sees."""

    def retried(self, message: Retried) -> None:
        """It is not tried again here."""

    def _run(self) -> None:
        held: Hold | str = ""
        try:
            held = self._hold()
            if isinstance(held, str):
                self._finish(None, why=held)
                return
            self._follow()
        except SubletError as error:
            message = f"{error.message} {error.hint}".strip()
            self._finish(Outcome("stopped", 255, message=message))
        except Exception as error:
            self._finish(None, why=f"its agent failed: {type(error).__name__}: {error}")
        finally:
            if not isinstance(held, str):
                held.release()

    def _follow(self) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        follower = JobFollower(
            self._spec,  # type: ignore[arg-type]
            Home.find(),
            self,
            [nothing, *self._outputs],
            self._wake,
        )
        began, cancelled = time.monotonic(), False
        try:
            while True:
                poll = select.poll()
                poll.register(follower.fileno(), select.POLLIN)
                poll.register(self._wake, select.POLLIN)
                ready = [number for number, _ in poll.poll(1000)]
                if follower.fileno() in ready and (ended := follower.hear()) is not None:
                    if self._given_up and ended.lease is None:
                        self._finish(None, why=f"no room on its node: {self._waits}")
                    else:
                        self._finish(ended.outcome, ended.how)
                    return
                if follower.job is not None and self.job is None:
                    self.job = follower.job
                    self._news()
                if self._wake in ready:
                    os.read(self._wake, 4096)
                while self._signals and follower.program is not None:
                    follower.signal(self._signals.pop(0))
                crowded = not self._granted and time.monotonic() > began + NO_ROOM
                if self.job is not None and not cancelled and (self._stopped or crowded):
                    cancelled, self._given_up = True, not self._stopped
                    with contextlib.suppress(SubletError):
                        act("cancel", [self.job])
        finally:
            follower.close()
            os.close(nothing)

    def _finish(self, outcome: Outcome | None, how: str = "", why: str = "") -> None:
        self.end = {
            "outcome": None if outcome is None else msgspec.to_builtins(outcome),
            "how": how,
            "why": why,
        }
        self.over = time.monotonic()
        self._news()

    def _news(self) -> None:
        self.sequence += 1
        self._changed()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"!")
