"""A model on its way into memory, and how long that may take.

Owns the thread in which a model is opened and warmed up: a load that never ends takes no other
thread along. What is opened, and how, is said by those that open it.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sublet.engine.signatures import Bound
from sublet.engine.warmup import warm_up

_GRACE = 2.0  # Seconds that a cancelled load has to end.


class Opened(Protocol):
    """A model in memory, until it is closed."""

    signatures: dict[str, Bound]

    def close(self) -> None:
        """Let no new call in, wait for those inside, and give everything back."""

    def cancel(self) -> None:
        """Stop what can be stopped of the calls inside; does not wait for them."""


class Opening(Protocol):
    """A model on its way into memory: `open` in one thread, `cancel` from any other."""

    def open(self) -> Opened: ...

    def cancel(self) -> None:
        """Stop what can be stopped: what TensorFlow computes, not what it waits for outside."""


class LoadAttempt:
    """One opening in a thread of its own, warm-up included. `ended_late` is called if it ends
    after `stop` has given it up."""

    def __init__(
        self,
        opening: Opening,
        path: str,
        options: Mapping[str, Any],
        ended_late: Callable[[], None],
    ) -> None:
        self.opened: Opened | None = None
        self.error: BaseException | None = None
        self._opening = opening
        self._path = path
        self._options = options
        self._ended_late = ended_late
        self._given_up = False
        self._deciding = threading.Lock()
        self._done = threading.Event()
        threading.Thread(target=self._run, name=f"load {path}", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came within this many seconds."""
        return self._done.wait(max(0.0, seconds))

    def stop(self) -> bool:
        """Give up a load that took too long; returns whether its thread has ended."""
        # TensorFlow waits for what it cancels, and that may have no end.
        threading.Thread(target=self._opening.cancel, name="cancel", daemon=True).start()
        self.wait(_GRACE)
        with self._deciding:
            self._given_up = not self._done.is_set()
            if self.opened is None and not self._given_up:
                # What a cancelled load says is not why it failed.
                self.error = None
            return not self._given_up

    def _run(self) -> None:
        opened = error = None
        try:
            opened = self._opening.open()
            if self._options.get("warm_up", True):
                rows = self._options.get("warm_up_rows") or ()
                warm_up(self._path, opened.signatures, rows)
        except BaseException as wrong:
            error = wrong
            if opened is not None:
                opened.close()
                opened = None
        with self._deciding:
            self.opened, self.error = opened, error
            self._done.set()
            late = self._given_up
        if late:
            if opened is not None:
                opened.close()
            self._ended_late()
