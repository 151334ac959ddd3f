"""What the statistics of the Open Inference Protocol say about calls."""

import pytest

from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, State, Version
from sublet.serving.control.versions import put
from sublet.serving.frontend.oip_codec import model_statistics
from sublet.serving.metrics import Inferences, Tally, add

CATALOGUE = put(Catalogue(), Version("a", 1, State.AVAILABLE))
CATALOGUE = put(CATALOGUE, Version("a", 2, State.AVAILABLE))
CATALOGUE = put(CATALOGUE, Version("a", 3, State.LOADING))
CATALOGUE = put(CATALOGUE, Version("b", 1, State.AVAILABLE))


def test_calls_of_one_batch_are_one_execution() -> None:
    calls = Inferences()
    for rows in (1, 1, 2):
        calls.answer(rows, 4, seconds=0.5, queued=0.125, computed=0.25)
    calls.fail(0.5)
    (stats,) = model_statistics(CATALOGUE, {("a", 2): calls}, "a", 2)["model_stats"]
    assert stats.pop("last_inference") > 0
    assert stats == {
        "name": "a",
        "version": "2",
        "inference_count": 4,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 3, "ns": 1_500_000_000},
            "fail": {"count": 1, "ns": 500_000_000},
            "queue": {"count": 3, "ns": 375_000_000},
            "compute_input": {"count": 3, "ns": 0},
            "compute_infer": {"count": 3, "ns": 750_000_000},
            "compute_output": {"count": 3, "ns": 0},
        },
        "batch_stats": [],
    }


def test_a_call_that_took_several_batches_counts_as_one() -> None:
    calls = Inferences()
    calls.answer(100, 32, 1.0, 0.0, 1.0)
    calls.answer(1, 0, 1.0, 0.0, 1.0)
    assert (calls.rows, calls.batches) == (101, 2)


def test_what_can_be_called_is_told_and_what_is_not_there_refused() -> None:
    def versions(name: str, number: int | None) -> list[tuple[str, str]]:
        return [
            (s["name"], s["version"])
            for s in model_statistics(CATALOGUE, {}, name, number)["model_stats"]
        ]

    assert versions("", None) == [("a", "1"), ("a", "2"), ("b", "1")]
    assert versions("a", None) == [("a", "1"), ("a", "2")]
    assert versions("a", 1) == [("a", "1")]
    for name, number in (("a", 3), ("a", 4), ("c", None)):
        with pytest.raises(ServingError, match="Servable not found"):
            versions(name, number)


def test_front_ends_add_up() -> None:
    one, other = Tally(), Tally()
    one.inference("a", 1).answer(2, 2, 1.0, 0.5, 0.25)
    other.inference("a", 1).answer(1, 1, 2.0, 0.5, 0.25)
    other.inference("a", 2).fail(1.0)
    whole = add([one, other]).inferences
    assert set(whole) == {("a", 1), ("a", 2)}
    calls = whole["a", 1]
    assert (calls.answered, calls.rows, calls.batches, calls.answered_seconds) == (2, 3, 2, 3.0)
    assert calls.last == other.inferences["a", 1].last
