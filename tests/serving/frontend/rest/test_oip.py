"""The Open Inference Protocol, with Triton's own client and by hand."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from sublet.serving.metrics import Inferences
from support.rest_server import Client, RestServer


@pytest.fixture
def connected(served: RestServer) -> Iterator[Any]:
    host, port = served.where
    with triton.InferenceServerClient(f"{host}:{port}") as made:
        yield made


def _input(name: str, array: Any, datatype: str, binary: bool) -> Any:
    made = triton.InferInput(name, array.shape, datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_the_server_and_its_models_are_described(connected: Any) -> None:
    assert connected.is_server_live()
    assert connected.is_server_ready()
    assert connected.get_server_metadata()["name"] == "sublet"
    assert connected.is_model_ready("half_plus_two")
    assert connected.is_model_ready("half_plus_two", "123")
    assert not connected.is_model_ready("nothing")
    assert connected.get_model_metadata("half_plus_two") == {
        "name": "half_plus_two",
        "versions": ["123"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }
    assert connected.get_model_config("seven")["input"][0]["data_type"] == "TYPE_FP32"
    index = {each["name"]: each for each in connected.get_model_repository_index()}
    assert index["seven"] == {"name": "seven", "version": "7", "state": "READY", "reason": ""}


def test_statistics_tell_what_became_of_calls(served: RestServer, connected: Any) -> None:
    calls = Inferences()
    calls.answer(3, 3, 0.5, 0.25, 0.125)
    served.backend.inferences["seven", 7] = calls
    (stats,) = connected.get_inference_statistics("seven", "7")["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (3, 1)
    assert stats["inference_stats"]["compute_infer"] == {"count": 1, "ns": 125_000_000}
    assert connected.get_inference_statistics("seven")["model_stats"] == [stats]
    assert stats in connected.get_inference_statistics()["model_stats"]
    with pytest.raises(InferenceServerException, match="Servable not found"):
        connected.get_inference_statistics("seven", "9")


def test_clients_neither_load_nor_unload_if_nobody_allows_it(connected: Any) -> None:
    for change in (connected.load_model, connected.unload_model):
        with pytest.raises(InferenceServerException, match="--allow_reload") as wrong:
            change("floats")
        assert wrong.value.status() == "403"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritons_client_infers(connected: Any, binary_in: bool, binary_out: bool) -> None:
    x = np.array([[1.0], [2.0], [5.0]], np.float32)
    outputs = [triton.InferRequestedOutput("y", binary_data=binary_out)]
    found = connected.infer(
        "half_plus_two", [_input("x", x, "FP32", binary_in)], outputs=outputs, request_id="7"
    )
    assert found.as_numpy("y").tolist() == [[2.5], [3.0], [4.5]]
    assert found.get_response()["id"] == "7"
    assert found.get_response()["model_version"] == "123"


def test_all_outputs_come_raw_if_none_is_named(connected: Any) -> None:
    given = [
        _input("a", np.array([[1, 2]], np.float32), "FP32", True),
        _input("b", np.array([3], np.int32), "INT32", True),
        _input("s_bytes", np.array([b"raw\xff\x00"], np.object_), "BYTES", True),
    ]
    found = connected.infer("mixed", given, model_version="2")
    assert found.as_numpy("a").tolist() == [[1.0, 2.0]]
    assert found.as_numpy("b").tolist() == [3]
    assert found.as_numpy("s_bytes").tolist() == [b"raw\xff\x00"]


def test_numbers_of_every_kind_pass(connected: Any) -> None:
    for model, datatype, array in (
        ("doubles", "FP64", np.array([0.1, np.nan])),
        ("longs", "INT64", np.array([[2**63 - 1]])),
        ("truths", "BOOL", np.array([True, False])),
        ("halves", "FP16", np.array([0.5], np.float16)),
        ("bytes", "UINT8", np.array([0, 255], np.uint8)),
    ):
        found = connected.infer(model, [_input("t", array, datatype, True)]).as_numpy("t")
        assert np.array_equal(found, array, equal_nan=found.dtype.kind == "f")


def test_the_best_classes_can_be_asked_for(connected: Any) -> None:
    scores = np.array([[0.1, 0.7, 0.2]], np.float32)
    wanted = [triton.InferRequestedOutput("t", class_count=2)]
    found = connected.infer("floats", [_input("t", scores, "FP32", True)], outputs=wanted)
    assert found.as_numpy("t").tolist() == [[b"0.700000:1", b"0.200000:2"]]


def test_what_is_not_done_is_refused_and_not_passed_over(connected: Any) -> None:
    given = _input("x", np.ones(1, np.float32), "FP32", True)
    with pytest.raises(InferenceServerException, match="Sequences are not kept"):
        connected.infer("half_plus_two", [given], sequence_id=7)
    with pytest.raises(InferenceServerException, match="Nothing is served"):
        connected.get_cuda_shared_memory_status()


def test_a_mistake_is_told_to_tritons_client(connected: Any) -> None:
    wrong = _input("x", np.zeros((1, 1), np.float64), "FP64", True)
    with pytest.raises(InferenceServerException, match="float but double is provided"):
        connected.infer("half_plus_two", [wrong])
    with pytest.raises(InferenceServerException, match="Servable not found"):
        connected.infer("nothing", [wrong])


def test_a_signature_can_be_chosen(client: Client) -> None:
    given = {"name": "inputs", "datatype": "BYTES", "shape": [1], "data": ["\u0000\u0000\u0000@"]}
    asked = {"parameters": {"signature_name": "regress_x_to_y"}, "inputs": [given]}
    seen = client.post("/v2/models/half_plus_two/infer", asked)
    assert seen.json["outputs"] == [
        {"name": "outputs", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}
    ]


def test_data_may_be_flat_or_nested(client: Client) -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        given = {"name": "t", "datatype": "FP32", "shape": [2, 2], "data": data}
        seen = client.post("/v2/models/floats/infer", {"inputs": [given]})
        (output,) = seen.json["outputs"]
        assert (output["shape"], output["data"]) == ([2, 2], [1.0, 2.0, 3.0, 4.0])


X = {"name": "t", "datatype": "FP32", "shape": [1], "data": [1]}
RAW = {"name": "t", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}


@pytest.mark.parametrize(
    ("document", "raw", "text"),
    [
        ({"inputs": {}}, None, "'inputs' is a list of objects."),
        ({"inputs": [1]}, None, "'inputs' is a list of objects."),
        ({}, None, "input size does not match signature: 0!=1"),
        ({"inputs": [{**X, "name": 5}]}, None, "'name' of an input is a string."),
        ({"inputs": [{**X, "datatype": "FP33"}]}, None, "a datatype that is not known: FP33"),
        ({"inputs": [{**X, "shape": 1}]}, None, "has no shape"),
        ({"inputs": [{**X, "shape": [-1]}]}, None, "has no shape"),
        ({"inputs": [{**X, "shape": [1] * 40}]}, None, "more than 32 dimensions"),
        ({"inputs": [{**X, "shape": [2**39] * 9}]}, None, "has 1 values"),
        ({"inputs": [{**X, "data": 5}]}, None, "has no data"),
        ({"inputs": [{**X, "data": ["a"]}]}, None, "is not of expected type: float"),
        ({"inputs": [X, X]}, None, 'Input "t" is given twice.'),
        ({"inputs": [X], "parameters": 5}, None, "'parameters' is an object."),
        ({"inputs": [X], "parameters": {"signature_name": 5}}, None, "is a string"),
        ({"inputs": [X], "outputs": [{"name": "z"}]}, None, "alias not found in signature: z"),
        ({"inputs": [RAW]}, None, "fewer bytes in the request than it says"),
        ({"inputs": [RAW]}, b"123", "fewer bytes in the request than it says"),
        ({"inputs": [RAW]}, b"12345", "1 bytes of the request belong to no input."),
        ({"inputs": [{**RAW, "shape": [2]}]}, b"1234", "take 8."),
        ({"inputs": [{**RAW, "shape": [2**39] * 9}]}, b"1234", "has 4 bytes"),
        ({"inputs": [{**RAW, "parameters": {"binary_data_size": -4}}]}, b"1234", "fewer bytes"),
        ({"inputs": [{**RAW, "datatype": "BYTES"}]}, b"\xff\xff\xff\xff", "a string is cut off"),
        ({"inputs": [{**RAW, "datatype": "BYTES"}]}, b"\0\0\0\0", None),
        ({"inputs": [{**X, "datatype": "FP16"}]}, None, "can only be sent as raw bytes"),
    ],
)
def test_a_mistake_by_hand_is_named(
    client: Client, document: Any, raw: bytes | None, text: str | None
) -> None:
    head = json.dumps(document).encode()
    more = () if raw is None else (f"Inference-Header-Content-Length: {len(head)}",)
    seen = client.ask("POST", "/v2/models/floats/infer", head + (raw or b""), *more)
    assert seen.status == 400
    assert (text or "string is provided") in seen.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/floats/infer", 404),
        ("POST", "/v2/models/floats", 404),
        ("GET", "/v2/models/nothing", 404),
        ("GET", "/v2/models/floats/versions/9", 404),
        ("GET", "/v2/models/floats/versions/99999999999999999999999/ready", 404),
        ("GET", "/v2/models/%2e%2e/ready", 404),
        ("GET", "/v2/health/dead", 404),
        ("POST", "/v2/models/floats/infer", 400),
    ],
)
def test_a_path_that_means_nothing_is_refused(
    client: Client, method: str, path: str, status: int
) -> None:
    seen = client.ask(method, path)
    assert seen.status == status
    assert set(seen.json) == {"error"}


def test_a_header_length_that_lies_is_refused(client: Client) -> None:
    path = "/v2/models/floats/infer"
    for length in ("99", "-1", "a", "9" * 30):
        with_header = client.ask("POST", path, b"{}", f"Inference-Header-Content-Length: {length}")
        assert with_header.status == 400
        if with_header.headers.get("connection") == "close":
            break


def test_readiness_is_503_with_a_reason_while_an_engine_does_not_answer(served: RestServer) -> None:
    paths = ("/v2/health/ready", "/v2/models/floats/ready")
    with served.client() as client:
        for trouble, status in (("", 200), ("it is away", 503), ("", 200)):
            served.do(partial(setattr, served.backend, "trouble", trouble))
            for path in paths:
                seen = client.ask("GET", path)
                assert seen.status == status
                assert not trouble or seen.json == {"error": trouble}
        assert client.ask("GET", "/v2/health/live").status == 200
