"""What is chosen for timings, without training anything."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def judged(count: int, steps: int, pack: Any = None, **timings: Any) -> Any:
    from sublet.inside.sweeping.probe import Timing, judge

    fused, alone = (
        None if timings.get(name) is None else Timing(*timings[name]) for name in ("fused", "alone")
    )
    return judge(count, steps, 2, fused, alone, pack)


def test_the_fastest_way_is_chosen_and_told() -> None:
    """Timings are (start, step, busy processors) of all as one, and of one alone."""
    fast = judged(32, 320, fused=(1, 0.005, 1))
    assert (fast.way, fast.seconds) == ("fused", pytest.approx(1.6))
    assert "less than any takes alone" in fast.why
    wide = judged(8, 100, fused=(1, 0.9, 2), alone=(0.5, 0.06, 1.9))
    assert wide.way == "serial"
    assert wide.why == "a model and step take 112 ms as one, 60 ms alone"
    busy = judged(8, 100, alone=(0.5, 0.06, 1.9))
    assert busy.why == "a model and step take 60 ms alone, which keeps 1.9 of 2 processors busy"


def test_packing_is_measured_where_it_decides() -> None:
    from sublet.inside.sweeping.probe import Timing

    asked = []

    def pack(step: float) -> Any:
        def measure() -> Timing:
            asked.append(step)
            return Timing(4.0, step)

        return measure

    one = {"fused": (1, 0.9, 2), "alone": (0.5, 0.1, 1.0)}
    short = judged(8, 30, pack(0.1), **one)
    assert (short.way, asked) == ("packed", [])
    assert "about 50 ms packed" in short.why
    assert judged(8, 1000, pack(0.11), **one).way == "packed"
    crowded = judged(8, 1000, pack(0.25), **one)
    assert (crowded.way, asked) == ("serial", [0.11, 0.25])
    assert "125 ms packed" in crowded.why
    # Where it cannot win by far, and where it failed.
    assert judged(8, 1000, pack(0.1), fused=(1, 0.02, 1), alone=(0.5, 0.1, 1)).way == "fused"
    assert len(asked) == 2
    assert judged(8, 1000, lambda: None, **one).way == "serial"


def test_groups_train_side_by_side_if_that_is_faster_with_their_start() -> None:
    from sublet.inside.sweeping.groups import Choice, apart
    from sublet.inside.sweeping.probe import Timing

    def group(seconds: float, busy: float) -> Choice:
        return Choice("fused", "", seconds=seconds, timing=Timing(2.0, 0.01, busy))

    assert apart([group(60, 1.0), group(60, 1.0)], 2)
    assert not apart([group(60, 1.9), group(60, 1.9)], 2)
    assert not apart([group(4, 1.0), group(4, 1.0)], 2)
    assert not apart([group(60, 1.0)], 2)
    assert not apart([group(60, 1.0), Choice("fused", "it was asked for")], 2)
