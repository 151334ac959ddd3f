"""SIGTERM, noted instead of obeyed until the training has saved its work."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Termination:
    """Waits for SIGTERM in the body. Without effect in other threads than the main one, where no
    signals arrive, and in a program that ignores it."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None
        self._waits = False

    def __enter__(self) -> Termination:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGTERM, self._note)
            self._waits = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._waits:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _note(self, *_: object) -> None:
        self.asked = True
