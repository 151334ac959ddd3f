"""tritonclient works unmodified: the Open Inference Protocol over gRPC."""

from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from sublet.serving.dtypes import DATA_TYPES
from sublet.serving.frontend.proto import inference
from sublet.serving.metrics import Inferences
from support.grpc_server import Served, served

triton = pytest.importorskip("tritonclient.grpc", exc_type=ImportError)
"""Not every release of it goes with the protobuf of every TensorFlow."""
TYPES = [kind for kind in DATA_TYPES.values() if kind.oip_name and kind.oip_name != "BF16"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def _input(name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


X = np.array([[1], [2], [5]], np.float32)


def test_the_server_and_its_models_are_ready(server: Served, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("half")
    assert client.is_model_ready("half", "123")
    assert not client.is_model_ready("half", "124")
    assert not client.is_model_ready("no such model")
    server.call(lambda: server.server.health.change(False))
    assert not client.is_server_ready()
    server.call(lambda: server.server.health.change(True))


def test_metadata_says_what_a_model_takes(client: Any) -> None:
    assert client.get_server_metadata().name == "sublet"
    reply = client.get_model_metadata("half")
    assert (reply.name, list(reply.versions)) == ("half", ["123"])
    (x,) = reply.inputs
    assert (x.name, x.datatype, list(x.shape)) == ("x", "FP32", [-1, 1])
    assert [y.name for y in reply.outputs] == ["y"]
    config = client.get_model_config("half").config
    assert (config.name, [(i.name, i.data_type) for i in config.input]) == ("half", [("x", 11)])
    assert [(y.name, list(y.dims)) for y in config.output] == [("y", [-1, 1])]


def test_statistics_tell_what_became_of_calls(server: Served, client: Any) -> None:
    calls = Inferences()
    calls.answer(3, 3, 0.5, 0.25, 0.125)
    server.call(lambda: server.backend.inferences.update({("half", 123): calls}))
    (stats,) = client.get_inference_statistics("half", "123").model_stats
    assert (stats.name, stats.version) == ("half", "123")
    assert (stats.inference_count, stats.execution_count) == (3, 1)
    assert stats.inference_stats.queue.ns == 250_000_000
    every = client.get_inference_statistics(as_json=True)["model_stats"]
    assert [(one["name"], one["version"]) for one in every if one["name"] == "half"] == [
        ("half", "123")
    ]
    with pytest.raises(InferenceServerException, match="Servable not found"):
        client.get_inference_statistics("half", "9")


def test_clients_load_and_unload_models_if_they_may(server: Served, client: Any) -> None:
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException) as wrong:
            change("half")
        assert wrong.value.status() == "StatusCode.UNAUTHENTICATED"
    with triton.InferenceServerClient(f"unix:{server.path}") as own:
        own.unload_model("half")
        own.load_model("half")
        with pytest.raises(InferenceServerException, match="send no config and no files"):
            own.load_model("half", config="{}")
    assert server.call(lambda: server.backend.changed) == [("half", False), ("half", True)]


def test_the_index_lists_every_version_with_its_state(client: Any) -> None:
    reply = [
        (m.name, m.version, m.state, m.reason) for m in client.get_model_repository_index().models
    ]
    assert ("half", "123", "READY", "") in reply
    assert ("half", "124", "UNAVAILABLE", "no such file") in reply


def test_infer_answers(client: Any) -> None:
    answer = client.infer("half", [_input("x", X, "FP32")], request_id="7")
    assert answer.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
    reply = answer.get_response()
    assert (reply.id, reply.model_name, reply.model_version) == ("7", "half", "123")


def test_infer_takes_versions_wanted_outputs_and_a_signature(client: Any) -> None:
    inputs = [
        _input("a", np.ones((1, 4), np.float32), "FP32"),
        _input("b", np.ones(1, np.int32), "INT32"),
    ]
    answer = client.infer(
        "half",
        inputs,
        model_version="123",
        outputs=[triton.InferRequestedOutput("sum")],
        parameters={"signature_name": "two"},
    )
    assert answer.as_numpy("sum").tolist() == [[5.0]]
    assert answer.as_numpy("difference") is None


def test_priority_and_timeout_of_a_request_reach_the_desk(server: Served, client: Any) -> None:
    server.call(server.backend.deadlines.clear)
    server.call(server.backend.counted.clear)
    client.infer("half", [_input("x", X, "FP32")], priority=7, timeout=60_000_000)
    (deadline,) = server.backend.deadlines
    assert deadline is not None
    assert server.backend.priorities[-1] == 7
    assert server.backend.counted == [("half", "Predict", "GRPC", 0)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.oip_name)
def test_every_type_goes_both_ways(client: Any, kind: Any) -> None:
    if kind.oip_name == "BYTES":
        array = np.array([[b"a", b"\xff", b""]], object)
    else:
        array = np.array([[0, 1, 1]]).astype(triton_to_np_dtype(kind.oip_name))
    given = [_input("x", array, kind.oip_name)]
    answer = client.infer("echo", given, parameters={"signature_name": kind.word})
    assert answer.as_numpy("y").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        ("FP32", "fp32_contents", [b"\0\0\x80\x3f\0\0\0\x40"]),
        ("INT8", "int_contents", [-1, 2]),
        ("UINT64", "uint64_contents", [1, 2**63]),
        ("BOOL", "bool_contents", [True, False]),
        ("BYTES", "bytes_contents", [b"a", b""]),
    ],
)
def test_typed_contents_are_answered_with_typed_contents(
    server: Served, kind: str, field: str, values: list[Any]
) -> None:
    import grpc

    request = inference("ModelInferRequest")(model_name="echo")
    request.parameters["signature_name"].string_param = {
        "FP32": "float",
        "BYTES": "string",
    }.get(kind, kind.lower())
    given = request.inputs.add(name="x", datatype=kind, shape=[2])
    getattr(given.contents, field).extend(values)
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = inference("ModelInferResponse").FromString(call(request.SerializeToString()))
    assert list(getattr(answer.outputs[0].contents, field)) == values
    assert not answer.raw_output_contents


def _refusal(client: Any, model: str, inputs: list[Any], **named: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as wrong:
        client.infer(model, inputs, **named)
    return wrong.value.status(), wrong.value.message()


@pytest.mark.parametrize(
    ("model", "given", "named", "status", "text"),
    [
        ("m", _input("x", X, "FP32"), {}, "NOT_FOUND", "Latest(m)"),
        ("half", _input("x", X, "FP32"), {"model_version": "9"}, "NOT_FOUND", "Specific(half, 9)"),
        (
            "half",
            _input("x", X, "FP32"),
            {"model_version": "new"},
            "INVALID_ARGUMENT",
            "'new' is not a number",
        ),
        ("half", _input("z", X, "FP32"), {}, "INVALID_ARGUMENT", "Signature input alias: x"),
        (
            "half",
            _input("x", X.astype(np.float64), "FP64"),
            {},
            "INVALID_ARGUMENT",
            "to be float but double",
        ),
        ("half", triton.InferInput("x", [1], "FP32"), {}, "INVALID_ARGUMENT", "cannot be read"),
        (
            "half",
            triton.InferInput("x", [1], "what"),
            {},
            "INVALID_ARGUMENT",
            "'what' is not known",
        ),
        ("half", triton.InferInput("x", [-1], "FP32"), {}, "INVALID_ARGUMENT", "not known"),
        (
            "half",
            _input("x", X, "FP32"),
            {"parameters": {"signature_name": "s"}},
            "FAILED_PRECONDITION",
            'key "s" not found',
        ),
        (
            "half",
            _input("x", X, "FP32"),
            {"outputs": [triton.InferRequestedOutput("q")]},
            "INVALID_ARGUMENT",
            "alias not found in signature: q",
        ),
    ],
)
def test_bad_requests_are_refused(
    client: Any, model: str, given: Any, named: dict[str, Any], status: str, text: str
) -> None:
    code, reply = _refusal(client, model, [given], **named)
    assert code == f"StatusCode.{status}"
    assert text in reply


def test_lengths_that_lie_are_refused(client: Any) -> None:
    given = _input("x", X, "FP32")
    given.set_shape([2**40, 2**40])
    assert "its shape and type take" in _refusal(client, "half", [given])[1]
    given = _input("x", np.array([b"abc"], object), "BYTES")
    given._raw_content = b"\xff\xff\xff\xffabc"
    assert "a string is cut off" in _refusal(client, "half", [given])[1]


def test_the_best_classes_can_be_asked_for(client: Any) -> None:
    x = _input("x", np.array([[3.0, 1.0, 2.0]], np.float32), "FP32")
    wanted = triton.InferRequestedOutput("y", class_count=2)
    result = client.infer("echo", [x], outputs=[wanted], parameters={"signature_name": "float"})
    assert result.as_numpy("y").tolist() == [[b"3.000000:0", b"2.000000:2"]]


def test_sequences_are_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="Sequences are not kept"):
        client.infer("half", [_input("x", X, "FP32")], sequence_id=7, sequence_start=True)


def test_a_stream_answers_each_request_in_order(server: Served) -> None:
    answers: Queue[tuple[Any, Any]] = Queue()
    with triton.InferenceServerClient(server.address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(20):
            x = np.array([[number]], np.float32)
            client.async_stream_infer("half", [_input("x", x, "FP32")])
        client.async_stream_infer("no such model", [_input("x", X, "FP32")])
        for number in range(20):
            result, error = answers.get(timeout=30)
            assert error is None
            assert result.as_numpy("y").tolist() == [[number / 2 + 2]]
        _, error = answers.get(timeout=30)
        assert "no such model" in str(error)
        client.stop_stream()
