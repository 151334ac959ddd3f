"""Where to cut a model such that the largest part is as small as it can be: without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balanced(costs: Sequence[int], arriving: Sequence[int], parts: int) -> list[int] | None:
    """The first call of each part but the first; None if there are not so many places to cut.

    `costs` has the bytes of each call; `arriving` what comes over from earlier parts if one begins
    with that call, or -1 where none may begin. The first of several equal cuts is taken.
    """
    total = [0, *accumulate(costs)]
    begins = [begin for begin in range(1, len(costs)) if arriving[begin] >= 0]
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    """For each begin of the part that is looked at: the largest part before it, and all begins."""
    for _ in range(parts - 1):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in begins:
            for begin, (largest, before) in best.items():
                if begin < end:
                    size = total[end] - total[begin] + (arriving[begin] if begin else 0)
                    candidate = (max(largest, size), (*before, end))
                    if end not in found or candidate < found[end]:
                        found[end] = candidate
        best = found
    ends = [
        (max(largest, total[-1] - total[begin] + arriving[begin]), before)
        for begin, (largest, before) in best.items()
        if begin
    ]
    return list(min(ends)[1]) if ends else None
