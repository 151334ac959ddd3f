"""The engine's process with real sockets and threads; its models are NumPy functions."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.channel.sync_client import SyncClient
from sublet.engine.flight_recorder import FlightRecorder
from sublet.errors import ServingError
from support.numpy_engine import NumpyEngine, floats, in_thread, numpy_engine
from support.sandbox import PATIENCE, wait_for


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NumpyEngine]:
    with numpy_engine(tmp_path_factory.mktemp("engine")) as one:
        for name in (
            "double",
            "sizes",
            "both",
            "positive",
            "counter",
            "words",
            "large",
            "broken",
            "dates",
            "nones",
        ):
            one.add(name)
        yield one


def rows(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, np.float32).reshape(-1, 1)}


def run(engine: NumpyEngine, model: str, inputs: dict[str, Any], **options: Any) -> Any:
    (only,) = engine.client.call(model, 1, "serving_default", inputs, **options).outputs.values()
    return only


def test_a_call_is_answered_with_what_the_model_gives(engine: NumpyEngine) -> None:
    answer = engine.client.call("double", 1, "serving_default", rows(1, 2))
    assert answer.outputs["y"].tolist() == [[2], [4]]
    assert answer.rows == 2


def test_outputs_are_those_that_were_asked_for_in_that_order(engine: NumpyEngine) -> None:
    inputs = {"a": floats([[3]]), "b": floats([[1]])}
    both = engine.client.call("both", 1, "serving_default", inputs).outputs
    assert {name: array.item() for name, array in both.items()} == {"sum": 4, "difference": 2}
    wanted = ("difference", "sum")
    assert list(engine.client.call("both", 1, "serving_default", inputs, wanted).outputs) == [
        *wanted
    ]
    assert run(engine, "both", inputs, outputs=("difference",)).item() == 2
    with pytest.raises(ServingError, match="output tensor alias not found in signature: z"):
        run(engine, "both", inputs, outputs=("z",))


def test_inputs_may_come_in_any_order(engine: NumpyEngine) -> None:
    inputs = {"b": floats([[1]]), "a": floats([[3]])}
    assert run(engine, "both", inputs, outputs=("difference",)).item() == 2


def test_strings_go_there_and_back(engine: NumpyEngine) -> None:
    words = np.array([b"one", b"", b"\0two"], object)
    assert run(engine, "words", {"x": words}).tolist() == [b"ONE", b"", b"\0TWO"]


def test_large_arrays_go_there_and_back(engine: NumpyEngine) -> None:
    array = np.arange(600_000, dtype=np.float32).reshape(-1, 100)
    for _ in range(3):
        np.testing.assert_array_equal(run(engine, "double", {"x": array}), 2 * array)


def test_a_large_answer_can_be_written_to(engine: NumpyEngine) -> None:
    found = run(engine, "large", {"x": np.ones((30, 10), np.float32)})
    assert found.shape == (30, 10_000)
    found += 1
    assert (found == 2).all()


def test_a_buffer_is_sent_as_it_is_and_can_be_used_again(engine: NumpyEngine) -> None:
    buffer = engine.client.buffer((1000, 100), np.float32)
    for value in (1, 2):
        buffer.fill(value)
        assert (run(engine, "double", {"x": buffer}) == 2 * value).all()


def test_an_empty_array_is_an_answer_too(engine: NumpyEngine) -> None:
    assert run(engine, "double", {"x": np.empty((0, 3), np.float32)}).shape == (0, 3)


@pytest.mark.parametrize(
    ("model", "inputs", "code", "says"),
    [
        ("nothing", rows(1), Code.NOT_FOUND, r"Servable not found for request: Specific\(nothing"),
        ("broken", rows(1), Code.FAILED_PRECONDITION, "it is broken"),
        ("double", {"z": floats([[1]])}, Code.INVALID_ARGUMENT, "Missing but required: {x}"),
        ("double", {"x": np.array([[1]])}, Code.INVALID_ARGUMENT, "has to be float32"),
        ("positive", rows(-1), Code.INVALID_ARGUMENT, "a row is negative"),
        ("dates", rows(1), Code.INTERNAL, "cannot be sent"),
    ],
)
def test_a_call_that_cannot_be_run_says_why(
    engine: NumpyEngine, model: str, inputs: Any, code: Code, says: str
) -> None:
    with pytest.raises(ServingError, match=says) as raised:
        run(engine, model, inputs)
    assert raised.value.code == code


def test_an_unknown_signature_is_refused(engine: NumpyEngine) -> None:
    with pytest.raises(ServingError, match='Serving signature key "other" not found'):
        engine.client.call("double", 1, "other", rows(1))


def test_only_the_owner_can_change_what_is_served(engine: NumpyEngine) -> None:
    other = engine.connect()
    for verb in ("add", "load", "unload", "forget"):
        with pytest.raises(ServingError, match=f"Only the engine's owner may {verb}"):
            other.ask({"ask": verb, "model": "double", "version": 1})
    assert other.ask({"ask": "describe", "model": "double"})["version"] == 1
    other.close()


@pytest.mark.parametrize("question", [{}, {"ask": "jump"}, {"ask": "describe"}, {"ask": "add"}])
def test_a_question_that_makes_no_sense_is_answered(engine: NumpyEngine, question: Any) -> None:
    with pytest.raises(ServingError):
        engine.client.ask(question)


def test_state_is_kept_from_call_to_call_in_their_order(engine: NumpyEngine) -> None:
    futures = [engine.client.submit("counter", 1, "serving_default", rows(1)) for _ in range(20)]
    totals = [future.result(PATIENCE).outputs["y"].item() for future in futures]
    assert totals == list(range(1, 21))


def test_waiting_calls_run_as_one_batch_and_a_bad_row_fails_alone(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        for name in ("held", "sizes", "positive"):
            engine.add(name)
        first, _ = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: (tmp_path / "begun").exists(), "the engine is busy")
        sizes = [engine.client.submit("sizes", 1, "serving_default", rows(1)) for _ in range(5)]
        signs = [
            engine.client.submit("positive", 1, "serving_default", rows(n)) for n in (1, -1, 2)
        ]
        wait_for(lambda: engine.model("positive")["waiting"] == 3, "all are there")
        engine.touch("go")
        first.join()
        assert [one.result(PATIENCE).outputs["y"].item() for one in sizes] == [5] * 5
        assert signs[0].result(PATIENCE).outputs["y"].item() == 1
        assert signs[2].result(PATIENCE).outputs["y"].item() == 2
        with pytest.raises(ServingError, match="a row is negative"):
            signs[1].result(PATIENCE)


def test_callers_of_one_batch_get_the_outputs_that_each_wanted(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        for name in ("held", "both"):
            engine.add(name)
        first, _ = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: (tmp_path / "begun").exists(), "the engine is busy")
        inputs = {"a": floats([[3]]), "b": floats([[1]])}
        wanted = [("sum",), ("difference",), (), ("difference", "sum")]
        calls = [engine.client.submit("both", 1, "serving_default", inputs, one) for one in wanted]
        wait_for(lambda: engine.model("both")["waiting"] == 4, "all are there")
        engine.touch("go")
        first.join()
        found = [call.result(PATIENCE) for call in calls]
        assert [one.rows for one in found] == [4] * 4
        for names, answer in zip(wanted, found, strict=True):
            assert tuple(answer.outputs) == (names or ("sum", "difference"))
            for name, array in answer.outputs.items():
                assert array.tolist() == [[4 if name == "sum" else 2]]
                assert array.dtype == (np.float32 if name == "sum" else np.int32)


def test_brief_batches_run_one_after_another_and_beside_a_long_one(tmp_path: Path) -> None:
    with numpy_engine(tmp_path, slots=2) as engine:
        engine.add("quick")
        engine.add("held")
        lines = [engine.connect() for _ in range(3)]

        def calls(client: SyncClient) -> list[float]:
            return [
                client.call("quick", 1, "serving_default", rows(n)).outputs["y"].item()
                for n in range(100)
            ]

        def all_calls() -> list[Any]:
            asked = [in_thread(partial(calls, client)) for client in lines]
            for thread, _ in asked:
                thread.join(60)
            return [reply for _, reply in asked]

        right = [[[2.0 * n for n in range(100)]]] * len(lines)
        assert all_calls() == right
        long, answer = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for((tmp_path / "begun").exists, "the long batch runs")
        assert all_calls() == right
        assert not answer
        engine.touch("go")
        long.join(60)
        assert answer[0].item() == 2
        assert engine.model("quick")["requests"] == 600
        for client in lines:
            client.close()


def test_outputs_that_have_no_rows_are_whole_for_each_caller(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        for name in ("held", "frames"):
            engine.add(name)
        first, _ = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: (tmp_path / "begun").exists(), "the engine is busy")
        inputs = [{"x": np.full((size, 1), size, np.float32)} for size in (8, 1000, 8)]
        calls = [engine.client.submit("frames", 1, "serving_default", one) for one in inputs]
        wait_for(lambda: engine.model("frames")["waiting"] == 8 + 64 + 8, "all are there")
        engine.touch("go")
        first.join()
        for size, call in zip((8, 1000, 8), calls, strict=True):
            assert call.result(PATIENCE).outputs["y"].tolist() == [[size] * 4] * (size // 4)


def test_outputs_that_cannot_be_sent_fail_and_leave_the_engine(engine: NumpyEngine) -> None:
    with pytest.raises(ServingError, match=r"cannot be sent.*not NoneType") as caught:
        run(engine, "nones", rows(1))
    assert caught.value.code == Code.INTERNAL
    assert run(engine, "double", rows(1)).item() == 2


def test_a_large_request_is_split_and_put_together_again(tmp_path: Path) -> None:
    with numpy_engine(tmp_path, slots=2) as engine:
        engine.add("sizes", max_batch_size=8)
        engine.add("double", max_batch_size=8)
        assert run(engine, "sizes", rows(*range(20))).ravel().tolist() == [8] * 16 + [4] * 4
        assert run(engine, "double", rows(*range(50))).ravel().tolist() == list(range(0, 100, 2))


def test_a_request_that_runs_out_of_memory_is_run_in_pieces_and_the_next_at_once(
    tmp_path: Path,
) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("tight")
        assert run(engine, "tight", rows(*range(40))).ravel().tolist() == [5] * 40
        assert engine.model("tight")["batches"] == 1
        assert run(engine, "tight", rows(*range(40))).ravel().tolist() == [5] * 40
        assert engine.model("tight")["batches"] == 1 + 8


def test_what_ran_out_of_memory_and_cannot_be_split_is_not_tried_again_at_once(
    tmp_path: Path,
) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("tight", alone=True)
        for said in ("needs about", "Send less at a time"):
            with pytest.raises(ServingError, match=said) as caught:
                run(engine, "tight", rows(*range(40)))
            assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert engine.model("tight")["batches"] == 1
        assert run(engine, "tight", rows(*range(5))).ravel().tolist() == [5] * 5


def test_batches_are_filled_up_to_an_allowed_size(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("sizes", allowed_batch_sizes=[4, 16])
        assert run(engine, "sizes", rows(1, 2, 3)).ravel().tolist() == [4] * 3
        assert run(engine, "sizes", rows(*range(5))).ravel().tolist() == [16] * 5


def test_a_batch_waits_for_others_as_long_as_it_was_told(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("sizes", max_batch_size=2, batch_timeout_micros=60_000_000)
        one = engine.client.submit("sizes", 1, "serving_default", rows(1))
        wait_for(lambda: engine.model("sizes")["waiting"] == 1, "it waits")
        other = engine.client.submit("sizes", 1, "serving_default", rows(1))
        assert [f.result(PATIENCE).outputs["y"].item() for f in (one, other)] == [2, 2]
        engine.add("sizes-soon", batch_timeout_micros=1000)
        assert run(engine, "sizes-soon", rows(1)).item() == 1


def test_what_waits_too_long_or_finds_no_room_is_refused(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held", max_batch_size=1, max_enqueued_batches=2)
        first = engine.client.submit("held", 1, "serving_default", rows(1))
        wait_for(lambda: (tmp_path / "begun").exists(), "the engine is busy")
        waits = engine.client.submit("held", 1, "serving_default", rows(3))
        other = engine.client.submit("held", 1, "serving_default", rows(5))
        with pytest.raises(ServingError, match="max_enqueued_batches is 2") as raised:
            run(engine, "held", rows(4))
        assert raised.value.code == Code.UNAVAILABLE
        # One gives up its place, to one that does not wait for ever.
        other.cancel()
        wait_for(lambda: engine.model("held")["waiting"] == 1, "there is room")
        soon = time.monotonic() + 0.05
        late = engine.client.submit("held", 1, "serving_default", rows(2), deadline=soon)
        wait_for(lambda: time.monotonic() > soon, "its deadline has passed")
        engine.touch("go")
        assert first.result(PATIENCE).outputs["y"].item() == 2
        assert waits.result(PATIENCE).outputs["y"].item() == 6
        with pytest.raises(ServingError) as expired:
            late.result(PATIENCE)
        assert expired.value.code == Code.DEADLINE_EXCEEDED


def test_a_caller_whose_time_is_up_does_not_wait_on(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held")
        with pytest.raises(ServingError) as raised:
            run(engine, "held", rows(1), deadline=time.monotonic() + 0.05)
        assert raised.value.code == Code.DEADLINE_EXCEEDED
        engine.touch("go")
        assert run(engine, "held", rows(3)).item() == 6


def test_calls_of_a_model_that_loads_wait_and_others_go_on(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("double-slowly", held=True)
        engine.add("double")
        engine.client.ask({"ask": "load", "model": "double", "version": 1})
        waits = [
            engine.client.submit("double-slowly", 1, "serving_default", rows(n)) for n in (1, 2)
        ]
        wait_for(lambda: engine.model("double-slowly")["waiting"] == 2, "both wait")
        assert run(engine, "double", rows(1)).item() == 2
        engine.touch("load")
        assert [one.result(PATIENCE).outputs["y"].item() for one in waits] == [2, 4]
        reply = [one["event"] for one in engine.events if one["model"] == "double-slowly"]
        assert reply == ["loading", "loaded"]


def test_the_newest_version_is_meant_if_none_is_named(engine: NumpyEngine) -> None:
    engine.add("double-new", 3)
    engine.add("double-new", 7)
    assert engine.client.ask({"ask": "describe", "model": "double-new"})["version"] == 7
    answer = engine.client.call("double-new", None, "serving_default", rows(1))
    assert answer.outputs["y"].item() == 2
    with pytest.raises(ServingError, match=r"Specific\(double-new, 5\)"):
        engine.client.call("double-new", 5, "serving_default", rows(1))


def test_a_model_that_was_unloaded_comes_back_and_one_forgotten_does_not(
    engine: NumpyEngine,
) -> None:
    engine.add("double-away")
    assert run(engine, "double-away", rows(1)).item() == 2
    engine.client.ask({"ask": "unload", "model": "double-away", "version": 1})
    assert not engine.model("double-away")["loaded"]
    assert run(engine, "double-away", rows(2)).item() == 4
    engine.client.ask({"ask": "forget", "model": "double-away", "version": 1})
    with pytest.raises(ServingError, match="Servable not found"):
        run(engine, "double-away", rows(2))


def test_calls_in_flight_fail_at_once_when_the_engine_is_killed(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held")
        thread, results = in_thread(lambda: run(engine, "held", rows(1)))
        future = engine.client.submit("held", 1, "serving_default", rows(1))
        wait_for(lambda: (tmp_path / "begun").exists(), "the model runs")
        os.kill(engine.process.pid, signal.SIGKILL)
        thread.join(PATIENCE)
        error = future.exception(PATIENCE)
        assert isinstance(error, ServingError)
        assert error.code == results[0].code == Code.UNAVAILABLE
        with pytest.raises(ServingError, match="has ended"):
            run(engine, "held", rows(1))


def test_clients_that_come_and_go_leave_no_memory_behind(engine: NumpyEngine) -> None:
    pid = engine.client.ask({"ask": "hello"})["pid"]

    def held() -> int:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    before = held()
    for number in range(1500):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(engine.path)
            sock.send(bytes([number % 256]) * (number % 64 + 1))
    assert run(engine, "double", rows(1)).item() == 2
    assert held() - before < 32 << 20


def test_an_engine_ends_with_its_owner(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.client.close()
        assert engine.process.wait(PATIENCE) == 0
        assert not Path(engine.path).exists()


def test_what_an_engine_runs_is_noted_until_it_is_done_and_after_its_end(tmp_path: Path) -> None:
    notes = FlightRecorder()
    with numpy_engine(tmp_path, slots=2) as engine:
        engine.client.send_recorder(notes.descriptor)
        notes.close()
        for number, name in ((7, "held"), (9, "double")):
            reply = {"model": name, "version": 1, "path": str(tmp_path), "number": number}
            engine.client.ask({"ask": "add", **reply})
        thread, _ = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: (tmp_path / "begun").exists(), "a call runs")
        assert run(engine, "double", rows(1)).item() == 2
        wait_for(lambda: notes.running() == [7], "the other one is done")
        engine.touch("go")
        thread.join()
        wait_for(lambda: not notes.running(), "nothing runs")
        (tmp_path / "go").unlink()
        thread, _ = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: notes.running() == [7], "a call runs")
        engine.process.kill()
        thread.join()
    assert notes.running() == [7]


def test_a_suspect_is_not_loaded_while_another_runs(tmp_path: Path) -> None:
    with numpy_engine(tmp_path, slots=2) as engine:
        for name in ("held", "double"):
            reply = {"model": name, "version": 1, "path": str(tmp_path)}
            engine.client.ask({"ask": "add", **reply, "suspect": time.monotonic() + 600})
        held, results = in_thread(lambda: run(engine, "held", rows(1)))
        wait_for(lambda: (tmp_path / "begun").exists(), "a call runs")
        double, others = in_thread(lambda: run(engine, "double", rows(1)))
        wait_for(lambda: engine.model("double")["state"] == "loading", "its load is begun")
        assert engine.model("double")["waiting"] == 1
        engine.touch("go")
        held.join()
        double.join()
        assert (results[0].item(), others[0].item()) == (2, 2)


def test_cancelling_a_future_takes_its_call_out_of_the_queue(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held", max_batch_size=1)
        first, second, third = (
            engine.client.submit("held", 1, "serving_default", rows(n)) for n in range(3)
        )
        wait_for(lambda: engine.model("held")["waiting"] == 2, "one runs, two wait")
        assert second.cancel()
        assert futures.wait([second], 30).done == {second}
        wait_for(lambda: engine.model("held")["waiting"] == 1, "one waits")
        assert first.cancel()  # It runs, and nobody hears what comes of it.
        engine.touch("go")
        assert third.result(PATIENCE).outputs["y"].item() == 4
        assert not third.cancel()
        assert engine.client.call("held", 1, "serving_default", rows(3)).outputs["y"].item() == 6
