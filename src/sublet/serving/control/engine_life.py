"""One engine's life, as its slot sees it: what it was busy with, and how it ended."""

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sublet.engine.flight_recorder import LARGEST, FlightRecorder
from sublet.serving.control import engine_ends
from sublet.serving.control.blame import Key

if TYPE_CHECKING:
    from sublet.wire.messages import Ended


class EngineLife:
    """One engine's, from its start to its end; in the event loop."""

    def __init__(self, notes: FlightRecorder) -> None:
        self.notes = notes
        self.ended = asyncio.Event()
        self.noted = asyncio.Event()
        """Set when the stock knows of its end."""
        self.cause = "The engine has ended."
        self.running: tuple[Key, ...] = ()
        """What it ran when it ended, unless somebody else ended it."""
        self._loading: dict[Key, None] = {}
        self._doom: engine_ends.End | None = None
        """How it is ended by us, if it is."""
        self._hung: set[Key] = set()
        self._numbers: dict[Key, int] = {}
        self._oom_kills = engine_ends.oom_kills()

    @property
    def loading(self) -> tuple[Key, ...]:
        """What it was just loading."""
        return tuple(self._loading)

    def number(self, key: Key) -> int:
        """By which it notes that it runs this version; 0 if there were too many."""
        if key not in self._numbers and len(self._numbers) < LARGEST:
            self._numbers[key] = len(self._numbers) + 1
        return self._numbers.get(key, 0)

    def hear(self, event: dict[str, Any]) -> None:
        """The engine says what it does."""
        key = (str(event.get("model")), int(event.get("version") or 0))
        if event.get("event") == "loading":
            self._loading[key] = None
        else:
            self._loading.pop(key, None)

    def condemn(self, end: engine_ends.End, hung: Collection[Key] = ()) -> None:
        """It is about to be ended, for this reason; these are why, or else all that it runs."""
        self._doom, self._hung = end, set(hung)

    def end(self, outcome: "Ended | None") -> None:
        """It is gone."""
        end = self._doom
        if end is None and outcome is not None:
            end = engine_ends.judge(outcome.outcome, self._oom_kills, engine_ends.oom_kills())
        if end is not None:
            if end.own:
                ran = self.notes.running()
                found = tuple(key for key, n in self._numbers.items() if n in ran)
                self.running = tuple(sorted(self._hung)) or found
            self.cause = end.text(self._loading, self.running)
        self.ended.set()
