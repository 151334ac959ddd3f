"""The services answer a gRPC client as TensorFlow Serving does, errors included."""

import asyncio
import gc
import gzip
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublet.serving.dtypes import DATA_TYPES
from sublet.serving.frontend import examples, proto
from sublet.serving.frontend.grpc import reflection
from sublet.serving.frontend.grpc.calls import LARGEST_UNPACKED
from sublet.serving.frontend.proto import inference, message, serving, tensors
from support.grpc_server import Served, served

PREDICTION = "/tensorflow.serving.PredictionService/"
MODELS = "/tensorflow.serving.ModelService/"
HEALTH = "/grpc.health.v1.Health/"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("grpc")) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address, UNLIMITED) as channel:
        yield channel


def _ask(channel: grpc.Channel, method: str, request: Any, answer: str = "", **named: Any) -> Any:
    kind = serving(answer) if answer else None
    call = channel.unary_unary(method, None, None if kind is None else kind.FromString)
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return call(data, **{"timeout": 30, **named})


def _refusal(channel: grpc.Channel, method: str, request: Any) -> tuple[StatusCode, str]:
    with pytest.raises(grpc.RpcError) as wrong:
        _ask(channel, method, request)
    return wrong.value.code(), wrong.value.details()


def _predict(model: str = "half", signature: str = "", **inputs: Any) -> Any:
    request = serving("PredictRequest")()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].ParseFromString(tensors.write(array))
    return request


X = np.array([1, 2, 5], np.float32)


def _half(channel: grpc.Channel) -> list[float]:
    answer = _ask(channel, PREDICTION + "Predict", _predict(x=X), "PredictResponse")
    return tensors.read("y", answer.outputs["y"]).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["Predict", "Regress"])
def test_a_call_for_a_flooded_model_is_refused_in_a_moment(
    channel: grpc.Channel, server: Served, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _predict(x=X) if method == "Predict" else serving("RegressionRequest")()
    request.model_spec.name = "half"
    monkeypatch.setattr(server.backend, "full", True)
    code, text = _refusal(channel, PREDICTION + method, request)
    assert (code, text) == (StatusCode.UNAVAILABLE, "full")


def test_predict_answers_with_values_and_the_model_that_gave_them(channel: grpc.Channel) -> None:
    answer = _ask(channel, PREDICTION + "Predict", _predict(x=X), "PredictResponse")
    assert tensors.read("y", answer.outputs["y"]).tolist() == [2.5, 3.0, 4.5]
    assert answer.outputs["y"].float_val
    spec = answer.model_spec
    assert (spec.name, spec.version.value) == ("half", 123)
    assert spec.signature_name == "serving_default"


def test_versions_and_labels_are_taken(channel: grpc.Channel) -> None:
    request = _predict(x=X)
    request.model_spec.version.value = 123
    assert _ask(channel, PREDICTION + "Predict", request)
    request.model_spec.version_label = "stable"
    assert _ask(channel, PREDICTION + "Predict", request)


def test_only_the_wanted_outputs_come(channel: grpc.Channel) -> None:
    a, b = np.ones((1, 4), np.float32), np.ones(1, np.int32)
    request = _predict(signature="two", a=a, b=b)
    request.output_filter.append("difference")
    answer = _ask(channel, PREDICTION + "Predict", request, "PredictResponse")
    assert list(answer.outputs) == ["difference"]
    assert tensors.read("", answer.outputs["difference"]).tolist() == [[3.0]]


@pytest.mark.parametrize("kind", [k for k in DATA_TYPES.values() if k.array], ids=lambda k: k.word)
def test_every_type_goes_both_ways(channel: grpc.Channel, kind: Any) -> None:
    if kind.word == "string":
        array = np.array([[b"a", b"\xff"]], object)
    else:
        array = np.array([[0, 1, 1]]).astype(kind.array)
    request = _predict("echo", kind.word, x=array)
    answer = _ask(channel, PREDICTION + "Predict", request, "PredictResponse")
    read = tensors.read("y", answer.outputs["y"])
    assert read.dtype == array.dtype
    assert read.tolist() == array.tolist()


def _with(request: Any, **spec: Any) -> Any:
    for name, value in spec.items():
        if name == "version":
            request.model_spec.version.value = value
        elif name == "outputs":
            request.output_filter.extend(value)
        else:
            setattr(request.model_spec, name, value)
    return request


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (b"", StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"),
        (b"\x0a\x00", StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified."),
        (
            _predict("m", x=X),
            StatusCode.NOT_FOUND,
            "Servable not found for request: Latest(m)",
        ),
        (
            _with(_predict(x=X), version=3),
            StatusCode.NOT_FOUND,
            "Servable not found for request: Specific(half, 3)",
        ),
        (
            _with(_predict(x=X), version_label="beta"),
            StatusCode.INVALID_ARGUMENT,
            "Unrecognized servable version label: beta",
        ),
        (
            _predict(signature="x", x=X),
            StatusCode.FAILED_PRECONDITION,
            'Serving signature key "x" not found.',
        ),
        (
            _predict(),
            StatusCode.INVALID_ARGUMENT,
            "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. "
            "Missing but required: {x}.",
        ),
        (
            _predict(x=X.astype(np.float64)),
            StatusCode.INVALID_ARGUMENT,
            'Expects arg[0] to be float but double is provided (input "x")',
        ),
        (
            _with(_predict(x=X), outputs=["z"]),
            StatusCode.INVALID_ARGUMENT,
            "output tensor alias not found in signature: z Outputs expected to be in the set {y}.",
        ),
        (
            _with(_predict(x=X), outputs=["y", "y"]),
            StatusCode.INVALID_ARGUMENT,
            "duplicate output tensor alias: y",
        ),
        (b"\xff", StatusCode.INTERNAL, "The request is no PredictRequest."),
        (
            _predict("bug", x=X),
            StatusCode.INTERNAL,
            "The server failed. Its log says how.",
        ),
    ],
)
def test_bad_predicts_are_refused_in_tensorflow_servings_words(
    channel: grpc.Channel, request_: Any, code: StatusCode, text: str
) -> None:
    assert _refusal(channel, PREDICTION + "Predict", request_) == (code, text)
    assert _half(channel) == [2.5, 3.0, 4.5]


def _examples(kind: str, signature: str, *given: bytes) -> Any:
    request = serving(kind)()
    request.model_spec.name = "half"
    request.model_spec.signature_name = signature
    request.input.example_list.examples.extend(given)
    return request


EXAMPLE = examples.serialize({"x": [1.0]})


def test_classify_gives_labels_and_scores(channel: grpc.Channel) -> None:
    request = _examples("ClassificationRequest", "classify_named", EXAMPLE, EXAMPLE)
    answer = _ask(channel, PREDICTION + "Classify", request, "ClassificationResponse")
    rows = [[(c.label, c.score) for c in r.classes] for r in answer.result.classifications]
    assert rows == [[("käse", float(len(EXAMPLE)))]] * 2
    assert answer.model_spec.signature_name == "classify_named"


def test_regress_gives_a_number_for_each_example(channel: grpc.Channel) -> None:
    request = _examples("RegressionRequest", "regress_x_to_y", EXAMPLE, EXAMPLE + EXAMPLE)
    answer = _ask(channel, PREDICTION + "Regress", request, "RegressionResponse")
    values = [r.value for r in answer.result.regressions]
    assert values == [len(EXAMPLE), 2 * len(EXAMPLE)]


def test_examples_are_passed_on_whatever_type_the_signature_says(channel: grpc.Channel) -> None:
    request = _examples("RegressionRequest", "regress_floats", EXAMPLE)
    answer = _ask(channel, PREDICTION + "Regress", request, "RegressionResponse")
    assert [r.value for r in answer.result.regressions] == [len(EXAMPLE)]


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        (
            "Classify",
            _examples("ClassificationRequest", "classify_x_to_y"),
            StatusCode.INVALID_ARGUMENT,
            "Input is empty.",
        ),
        ("Classify", b"", StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            "Classify",
            _examples("ClassificationRequest", "s", EXAMPLE),
            StatusCode.INVALID_ARGUMENT,
            "No signature was found with the name: s",
        ),
        (
            "Regress",
            _examples("RegressionRequest", "two", EXAMPLE),
            StatusCode.INVALID_ARGUMENT,
            "Expected one input Tensor.",
        ),
    ],
)
def test_bad_examples_are_refused(
    channel: grpc.Channel, method: str, request_: Any, code: StatusCode, text: str
) -> None:
    assert _refusal(channel, PREDICTION + method, request_) == (code, text)


def _multi(*tasks: tuple[str, str, str]) -> Any:
    request = serving("MultiInferenceRequest")()
    for model, signature, method in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    request.input.example_list.examples.append(EXAMPLE)
    return request


def test_multi_inference_answers_each_task(channel: grpc.Channel) -> None:
    request = _multi(("half", "regress_x_to_y", "regress"), ("half", "classify_named", "classify"))
    answer = _ask(channel, PREDICTION + "MultiInference", request, "MultiInferenceResponse")
    regression, classification = answer.results
    assert regression.regression_result.regressions[0].value == len(EXAMPLE)
    assert regression.model_spec.signature_name == "regress_x_to_y"
    classes = classification.classification_result.classifications[0].classes
    assert [c.label for c in classes] == ["käse"]


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (_multi(), StatusCode.INVALID_ARGUMENT, "ModelSpec has no name specified."),
        (
            _multi(("half", "regress_x_to_y", "regress"), ("", "", "regress")),
            StatusCode.INVALID_ARGUMENT,
            "Found ModelSpec with an empty model name.",
        ),
        (
            _multi(("half", "regress_x_to_y", "regress"), ("echo", "", "regress")),
            StatusCode.INVALID_ARGUMENT,
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        (
            _multi(*[("half", "regress_x_to_y", "regress")] * 2),
            StatusCode.INVALID_ARGUMENT,
            "Duplicate evaluation of signature: regress_x_to_y",
        ),
        (
            _multi(("half", "s", "regress")),
            StatusCode.INVALID_ARGUMENT,
            "Requested signature not found in model graph: s",
        ),
        (
            _multi(("half", "serving_default", "predict")),
            StatusCode.UNIMPLEMENTED,
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
    ],
)
def test_bad_multi_inferences_are_refused(
    channel: grpc.Channel, request_: Any, code: StatusCode, text: str
) -> None:
    assert _refusal(channel, PREDICTION + "MultiInference", request_) == (code, text)


def _metadata(*fields: str, name: str = "half") -> Any:
    request = serving("GetModelMetadataRequest")(metadata_field=fields)
    request.model_spec.name = name
    return request


def test_metadata_holds_the_signatures(channel: grpc.Channel) -> None:
    answer = _ask(
        channel,
        PREDICTION + "GetModelMetadata",
        _metadata("signature_def"),
        "GetModelMetadataResponse",
    )
    assert answer.model_spec.version.value == 123
    filled = serving("SignatureDefMap")()
    assert answer.metadata["signature_def"].Unpack(filled)
    x = filled.signature_def["serving_default"].inputs["x"]
    assert (x.name, x.dtype, [d.size for d in x.tensor_shape.dim]) == ("x:0", 1, [-1, 1])
    assert filled.signature_def["classify_x_to_y"].inputs["inputs"].tensor_shape.unknown_rank


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (b"", StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            _metadata(),
            StatusCode.INVALID_ARGUMENT,
            "GetModelMetadataRequest must specify at least one metadata_field",
        ),
        (_metadata("x"), StatusCode.INVALID_ARGUMENT, "Metadata field x is not supported"),
        (
            _metadata("signature_def", name="m"),
            StatusCode.NOT_FOUND,
            "Servable not found for request: Latest(m)",
        ),
    ],
)
def test_bad_questions_for_metadata_are_refused(
    channel: grpc.Channel, request_: Any, code: StatusCode, text: str
) -> None:
    assert _refusal(channel, PREDICTION + "GetModelMetadata", request_) == (code, text)


def test_status_tells_each_version_the_newest_first(channel: grpc.Channel) -> None:
    request = serving("GetModelStatusRequest")()
    request.model_spec.name = "half"
    answer = _ask(channel, MODELS + "GetModelStatus", request, "GetModelStatusResponse")
    reply = [
        (s.version, s.state, s.status.error_code, s.status.error_message)
        for s in answer.model_version_status
    ]
    assert reply == [(124, 50, 13, "no such file"), (123, 30, 0, "")]
    request.model_spec.version.value = 9
    assert _refusal(channel, MODELS + "GetModelStatus", request) == (
        StatusCode.NOT_FOUND,
        "Could not find version 9 of model half",
    )
    request.model_spec.name = "m"
    request.model_spec.ClearField("version")
    assert _refusal(channel, MODELS + "GetModelStatus", request) == (
        StatusCode.NOT_FOUND,
        "Could not find any versions of model m",
    )


def test_the_status_of_a_labelled_version_is_its_own(channel: grpc.Channel) -> None:
    request = serving("GetModelStatusRequest")()
    request.model_spec.name = "half"
    request.model_spec.version_label = "stable"
    answer = _ask(channel, MODELS + "GetModelStatus", request, "GetModelStatusResponse")
    assert [status.version for status in answer.model_version_status] == [123]


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (MODELS + "GetModelStatus", "GetModelStatusRequest"),
        (PREDICTION + "Classify", "ClassificationRequest"),
        (PREDICTION + "Regress", "RegressionRequest"),
        (PREDICTION + "MultiInference", "MultiInferenceRequest"),
        (PREDICTION + "GetModelMetadata", "GetModelMetadataRequest"),
    ],
)
def test_an_unknown_label_is_refused_everywhere(
    channel: grpc.Channel, method: str, name: str
) -> None:
    request = serving(name)()
    spec = request.tasks.add().model_spec if name.startswith("Multi") else request.model_spec
    spec.name, spec.version_label = "half", "beta"
    if name == "GetModelMetadataRequest":
        request.metadata_field.append("signature_def")
    assert _refusal(channel, method, request) == (
        StatusCode.INVALID_ARGUMENT,
        "Unrecognized servable version label: beta",
    )


def test_a_new_set_of_models_reaches_the_desk(server: Served) -> None:
    request = serving("ReloadConfigRequest")()
    method = MODELS + "HandleReloadConfigRequest"
    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        code, text = _refusal(channel, method, request)
        assert code == StatusCode.INVALID_ARGUMENT
        assert "Only ModelConfigList is currently supported" in text
        request.config.model_config_list.config.add(name="a", base_path="/a")
        answer = _ask(channel, method, request, "ReloadConfigResponse")
        assert answer.status.error_code == 0
        assert server.backend.reloaded == ["a"]
        request.config.model_config_list.config.add(name="a", base_path="/b")
        code, text = _refusal(channel, method, request)
        assert code == StatusCode.INVALID_ARGUMENT
        assert "multiple times" in text


def test_unknown_methods_are_unimplemented(channel: grpc.Channel) -> None:
    code, text = _refusal(channel, "/no.Such/Method", b"")
    assert code == StatusCode.UNIMPLEMENTED
    assert "/no.Such/Method" in text


def _check(channel: grpc.Channel, service: str) -> int:
    request = message("grpc.health.v1.HealthCheckRequest")(service=service)
    data = _ask(channel, HEALTH + "Check", request)
    status: int = message("grpc.health.v1.HealthCheckResponse").FromString(data).status
    return status


def test_health_is_known_for_every_service_and_no_other(channel: grpc.Channel) -> None:
    services = ("", *reflection.services())
    assert {_check(channel, service) for service in services} == {1}
    data = _ask(channel, HEALTH + "List", message("grpc.health.v1.HealthListRequest")())
    statuses = message("grpc.health.v1.HealthListResponse").FromString(data).statuses
    assert {name: each.status for name, each in statuses.items()} == dict.fromkeys(services, 1)
    with pytest.raises(grpc.RpcError) as wrong:
        _check(channel, "no.such.Service")
    assert wrong.value.code() == StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_client_without_stubs_learns_the_services_and_calls_one(
    channel: grpc.Channel, version: str
) -> None:
    """As grpcurl does: it lists them, and asks for the files of the one that it calls."""
    asked = message("grpc.reflection.v1.ServerReflectionRequest")
    info = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        asked.SerializeToString,
        message("grpc.reflection.v1.ServerReflectionResponse").FromString,
    )
    name = "tensorflow.serving.PredictionService"
    listed, found, unknown = info(
        iter(
            (
                asked(list_services="*"),
                asked(file_containing_symbol=name),
                asked(file_containing_symbol="no.Such"),
            )
        ),
        timeout=30,
    )
    assert name in {one.name for one in listed.list_services_response.service}
    assert unknown.error_response.error_code == StatusCode.NOT_FOUND.value[0]
    pool = DescriptorPool()
    for data in reversed(found.file_descriptor_response.file_descriptor_proto):
        pool.AddSerializedFile(data)
    method = pool.FindServiceByName(name).methods_by_name["Predict"]
    request = GetMessageClass(method.input_type)()
    request.model_spec.name = "half"
    request.inputs["x"].dtype = 1
    request.inputs["x"].float_val.append(2.0)
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].tensor_shape.dim.add(size=1)
    answer = GetMessageClass(method.output_type).FromString(
        _ask(channel, f"/{name}/{method.name}", request)
    )
    assert list(answer.outputs["y"].float_val) == [3.0]


def test_every_method_of_a_described_service_is_there(server: Served) -> None:
    described = {
        f"/{service}/{method}".encode()
        for service in reflection.services()
        for method in proto.pool().FindServiceByName(service).methods_by_name
    }
    alpha = b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert described == server.server.methods.keys() - {alpha}


def test_large_metadata_fails_its_call_and_leaves_the_channel(channel: grpc.Channel) -> None:
    predict = channel.unary_unary(PREDICTION + "Predict")
    request = _predict(x=X).SerializeToString()
    calls = [predict.future(request, timeout=30) for _ in range(3)]
    with pytest.raises(grpc.RpcError) as wrong:
        predict(request, metadata=[("x-large", "y" * 20_000)], timeout=30)
    assert wrong.value.code() == StatusCode.RESOURCE_EXHAUSTED
    assert all(call.result() for call in calls)


def test_who_watches_health_hears_of_changes(server: Served, channel: grpc.Channel) -> None:
    response = message("grpc.health.v1.HealthCheckResponse").FromString
    watch = channel.unary_stream(HEALTH + "Watch", None, response)(b"", timeout=30)
    assert next(watch).status == 1
    server.call(lambda: server.server.health.change(False))
    assert next(watch).status == 2
    server.call(lambda: server.server.health.change(True))
    assert next(watch).status == 1
    watch.cancel()


def test_the_deadline_of_a_call_reaches_the_desk(server: Served, channel: grpc.Channel) -> None:
    server.call(server.backend.deadlines.clear)
    _ask(channel, PREDICTION + "Predict", _predict(x=X), timeout=None)
    _ask(channel, PREDICTION + "Predict", _predict(x=X), timeout=50)
    none, some = server.backend.deadlines
    assert none is None
    assert some is not None


def test_a_call_that_the_client_gives_up_is_cancelled(
    server: Served, channel: grpc.Channel
) -> None:
    before = server.backend.cancelled
    begun = server.backend.begun
    call = channel.unary_unary(PREDICTION + "Predict").future(
        _predict("slow", x=X).SerializeToString()
    )
    server.until(lambda: server.backend.begun > begun)
    call.cancel()
    server.until(lambda: server.backend.cancelled == before + 1)
    server.until(lambda: server.backend.counted[-1] == ("slow", "Predict", "GRPC", 1))


def test_the_tensors_of_a_cancelled_call_go_with_it(server: Served, channel: grpc.Channel) -> None:
    begun = server.backend.begun
    gc.disable()  # An idle server collects nothing, either.
    try:
        call = channel.unary_unary(PREDICTION + "Predict").future(
            _predict("slow", x=X).SerializeToString()
        )
        server.until(lambda: server.backend.begun > begun)
        call.cancel()
        server.until(lambda: server.backend.waiting[-1]() is None)
    finally:
        gc.enable()


def test_a_client_that_is_gone_frees_its_calls(server: Served) -> None:
    before = server.backend.cancelled
    begun = server.backend.begun
    with grpc.insecure_channel(server.address) as channel:
        data = _predict("slow", x=X).SerializeToString()
        call = channel.unary_unary(PREDICTION + "Predict")
        waiting = [call.future(data) for _ in range(3)]
        server.until(lambda: server.backend.begun == begun + 3)
        assert not any(each.done() for each in waiting)
    server.until(lambda: server.backend.cancelled == before + 3)


def test_requests_are_counted_by_how_they_end(server: Served, channel: grpc.Channel) -> None:
    server.call(server.backend.counted.clear)
    _half(channel)
    _refusal(channel, PREDICTION + "Predict", _predict("no such model", x=X))
    _refusal(channel, PREDICTION + "Predict", _predict("bug", x=X))
    assert server.backend.counted == [
        ("half", "Predict", "GRPC", 0),
        ("no such model", "Predict", "GRPC", 5),
        ("bug", "Predict", "GRPC", 13),
    ]


def test_compressed_requests_are_taken(server: Served) -> None:
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel:
        assert _half(channel) == [2.5, 3.0, 4.5]
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Deflate) as channel:
        assert _half(channel) == [2.5, 3.0, 4.5]


def test_a_unix_socket_serves_as_well(server: Served) -> None:
    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        assert _half(channel) == [2.5, 3.0, 4.5]


def test_large_tensors_go_both_ways_within_the_windows(channel: grpc.Channel) -> None:
    array = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
    request = _predict("echo", "float", x=array)
    answer = _ask(channel, PREDICTION + "Predict", request, "PredictResponse")
    assert np.array_equal(tensors.read("y", answer.outputs["y"]), array)


def test_many_calls_at_once_on_one_connection_are_all_answered(channel: grpc.Channel) -> None:
    call = channel.unary_unary(PREDICTION + "Predict", None, serving("PredictResponse").FromString)
    values = [np.array([n], np.float32) for n in range(300)]
    waiting = [call.future(_predict(x=x).SerializeToString()) for x in values]
    answers = [tensors.read("y", each.result(30).outputs["y"])[0] for each in waiting]
    assert answers == [n / 2 + 2 for n in range(300)]


def test_messages_beyond_the_limit_are_refused_and_bombs_too(tmp_path: Path) -> None:
    with (
        served(tmp_path, largest=10_000) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        request = _predict("echo", "float", x=np.zeros(100_000, np.float32))
        code, text = _refusal(channel, PREDICTION + "Predict", request)
        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max (" in text
        assert len(gzip.compress(request.SerializeToString())) < 10_000
        call = channel.unary_unary(PREDICTION + "Predict")
        with pytest.raises(grpc.RpcError) as wrong:
            call(request.SerializeToString(), compression=grpc.Compression.Gzip, timeout=30)
        assert wrong.value.code() == StatusCode.RESOURCE_EXHAUSTED
        assert _half(channel) == [2.5, 3.0, 4.5]


def test_few_bytes_do_not_become_many(channel: grpc.Channel) -> None:
    bomb = bytes(LARGEST_UNPACKED + 1)
    call = channel.unary_unary(PREDICTION + "Predict")
    with pytest.raises(grpc.RpcError) as wrong:
        call(bomb, compression=grpc.Compression.Gzip, timeout=30)
    assert wrong.value.code() == StatusCode.RESOURCE_EXHAUSTED
    assert _half(channel) == [2.5, 3.0, 4.5]


def test_a_drain_answers_what_is_under_way_and_refuses_the_rest(tmp_path: Path) -> None:
    with served(tmp_path) as server, grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            PREDICTION + "Predict", None, serving("PredictResponse").FromString
        ).future(_predict("slow", x=X).SerializeToString(), timeout=30)
        server.until(lambda: server.backend.begun == 1)
        drained = threading.Thread(target=lambda: server.run(server.server.drain(30)))
        drained.start()
        server.until(lambda: not server.server.health.ready)
        # A channel like the first one would share its connection.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(server.address, alone) as late:
            with pytest.raises(grpc.RpcError) as wrong:
                _half(late)
            assert wrong.value.code() == StatusCode.UNAVAILABLE
        server.call(server.backend.gate.set)
        assert tensors.read("y", call.result().outputs["y"]).tolist() == [2.5, 3.0, 4.5]
        drained.join()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_random_requests_get_an_answer_or_a_refusal(
    channel: grpc.Channel, data: st.DataObject
) -> None:
    whole = _predict(x=X).SerializeToString()
    at = data.draw(st.integers(0, len(whole)))
    request = data.draw(
        st.one_of(
            st.binary(max_size=200),
            st.binary(max_size=3).map(lambda b: whole[:at] + b + whole[at + len(b) :]),
            st.just(whole[:at]),
        )
    )
    method = data.draw(
        st.sampled_from(
            [
                PREDICTION + "Predict",
                PREDICTION + "Classify",
                PREDICTION + "Regress",
                PREDICTION + "MultiInference",
                PREDICTION + "GetModelMetadata",
                MODELS + "GetModelStatus",
                HEALTH + "Check",
                "/inference.GRPCInferenceService/ModelInfer",
                "/inference.GRPCInferenceService/ModelMetadata",
            ]
        )
    )
    code = StatusCode.OK
    try:
        _ask(channel, method, request)
    except grpc.RpcError as wrong:
        code = wrong.code()
    assert code in (
        StatusCode.OK,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.NOT_FOUND,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.INTERNAL,
        StatusCode.UNIMPLEMENTED,
    )
    assert _half(channel) == [2.5, 3.0, 4.5]


def test_an_asyncio_client_is_answered_as_well(server: Served) -> None:
    async def ask() -> list[Any]:
        async with grpc.aio.insecure_channel(server.address) as channel:
            call = channel.unary_unary(PREDICTION + "Predict")
            data = _predict(x=X).SerializeToString()
            return await asyncio.gather(*(call(data, timeout=30) for _ in range(50)))

    answers = {bytes(answer) for answer in asyncio.run(ask())}
    (answer,) = (serving("PredictResponse").FromString(each) for each in answers)
    assert tensors.read("y", answer.outputs["y"]).tolist() == [2.5, 3.0, 4.5]


def test_of_an_input_that_is_given_twice_the_last_counts_large_or_small(
    channel: grpc.Channel,
) -> None:
    def given(size: int) -> bytes:
        request = _predict("echo", "uint8", x=np.zeros(1, np.uint8))
        tensor = request.inputs["x"]
        tensor.ClearField("int_val")
        tensor.tensor_shape.dim[0].size = size
        tensor.tensor_content = bytes(size)
        return request.SerializeToString()  # type: ignore[no-any-return]

    for first, last in ((3, 100_000), (100_000, 3), (100_000, 70_000)):
        data = given(first) + given(last)
        answer = _ask(channel, PREDICTION + "Predict", data, "PredictResponse")
        assert tensors.read("y", answer.outputs["y"]).shape == (last,)


def test_readiness_is_told_and_taken_back(server: Served, channel: grpc.Channel) -> None:
    path = "/inference.GRPCInferenceService/"

    def ready() -> tuple[bool, bool, int]:
        whole = _ask(channel, path + "ServerReady", b"")
        model = _ask(channel, path + "ModelReady", inference("ModelReadyRequest")(name="half"))
        return (
            inference("ServerReadyResponse").FromString(whole).ready,
            inference("ModelReadyResponse").FromString(model).ready,
            _check(channel, ""),
        )

    assert ready() == (True, True, 1)
    for trouble in ("it is away", ""):
        server.call(partial(setattr, server.backend, "trouble", trouble))
        server.call(partial(server.server.change, not trouble))
        assert ready() == ((False, False, 2) if trouble else (True, True, 1))
