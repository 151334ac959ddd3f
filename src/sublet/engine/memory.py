"""What TensorFlow's pool holds, for a store of models.

Owns looking. On a GPU and on the CPU it is the same allocator, and a lease is its limit; without a
lease there is no limit, and nothing is known of what is used.
"""

from __future__ import annotations

import time

from sublet.inside import allocator, current_lease, measure

_LOOKS = 5
_PAUSE = 0.001


class Meter:
    """The pool of this process."""

    def __init__(self) -> None:
        self._lease = current_lease.current()

    @property
    def limit(self) -> int | None:
        return None if self._lease is None else allocator.limit(self._lease)

    def now(self) -> int | None:
        """Bytes in use at this moment."""
        used = None if self._lease is None else allocator.usage(self._lease)
        return None if used is None else used[0]

    def held(self) -> int | None:
        """Bytes in use, without what a batch uses for a moment: the least of a few looks."""
        looks = []
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE)
            used = self.now()
            if used is None:
                return None
            looks.append(used)
        return min(looks)

    def take_peak(self) -> int | None:
        """The most that was in use since the last time this was asked."""
        used = None if self._lease is None else allocator.usage(self._lease)
        if self._lease is None or used is None:
            return None
        board = measure.writer()
        if board is not None:
            # What is learned about this program must not miss the peak that is forgotten now.
            board.note_usage()
        allocator.forget_peak(self._lease)
        return used[1]
