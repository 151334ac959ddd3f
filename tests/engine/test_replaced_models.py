"""A version takes another's place, under calls that name none."""

from typing import Any

import pytest

from sublet.errors import ServingError
from support.numpy_engine import NumpyEngine, floats, numpy_engine
from support.sandbox import wait_for


@pytest.fixture
def engine(tmp_path: Any) -> Any:
    with numpy_engine(tmp_path) as one:
        yield one


def answered(engine: NumpyEngine) -> dict[int, int]:
    """How many requests each version has had."""
    rows: Any = engine.client.ask({"ask": "models"})
    return {row["version"]: row["requests"] for row in rows}


def call(engine: NumpyEngine, version: int | None = None) -> Any:
    answer = engine.client.call("double", version, "serving_default", {"x": floats([[1]])})
    return answer.outputs["y"].tolist()


def ask(engine: NumpyEngine, verb: str, version: int) -> None:
    engine.client.ask({"ask": verb, "model": "double", "version": version})


def test_a_version_that_was_never_loaded_is_not_tried_on_calls_that_name_none(
    engine: NumpyEngine,
) -> None:
    engine.add("double", 1)
    assert call(engine) == [[2]]
    engine.add("double", 2, held=True)
    assert call(engine) == [[2]]
    assert answered(engine) == {1: 2, 2: 0}


def test_calls_that_name_none_go_to_the_next_version_once_theirs_is_retired(
    engine: NumpyEngine,
) -> None:
    engine.add("double", 1)
    call(engine)
    engine.add("double", 2)
    ask(engine, "load", 2)
    ask(engine, "retire", 1)
    assert call(engine) == [[2]]
    assert call(engine, version=1) == [[2]]
    assert answered(engine) == {1: 2, 2: 1}
    ask(engine, "forget", 1)
    assert call(engine) == [[2]]
    assert answered(engine) == {2: 2}


def test_calls_that_name_none_are_told_that_the_only_version_is_retired_and_earlier_ones_answered(
    engine: NumpyEngine,
) -> None:
    engine.add("held", 1, max_batch_size=1)
    client = engine.connect()
    x = {"x": floats([[1]])}
    first, second = (client.submit("held", None, "serving_default", x) for _ in range(2))
    wait_for((engine.directory / "begun").exists, "the first runs")
    wait_for(lambda: engine.model("held")["waiting"], "the second waits")
    engine.client.ask({"ask": "retire", "model": "held", "version": 1})
    with pytest.raises(ServingError, match=r"^Servable not found for request:"):
        client.call("held", None, "serving_default", x)
    engine.touch("go")
    assert [one.result(30).rows for one in (first, second)] == [1, 1]
    client.close()
