"""The official stubs work unmodified, in a process that has our messages, too.

The one module here that imports TensorFlow: the stubs do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool

from sublet.serving.frontend import proto
from sublet.serving.frontend.proto import tensors
from support.grpc_server import Served, served

pytestmark = pytest.mark.slow

AS_BYTES = {
    # Declared as bytes here, with the same form on the wire; see the files' first lines.
    "float_val",
    "double_val",
    "scomplex_val",
    "dcomplex_val",
    "fp32_contents",
    "fp64_contents",
    "examples",
    "context",
    # A code by its number.
    "error_code",
}


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("official")) as server:
        yield server


@pytest.fixture(scope="module")
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(tf: Any, channel: grpc.Channel) -> Any:
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def _messages(descriptor: Any) -> Iterator[Any]:
    yield descriptor
    for nested in descriptor.nested_types:
        yield from _messages(nested)


def _repeated(field: Any) -> bool:
    """Protobuf 4 has only the label, protobuf 7 only the answer."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def test_our_messages_have_the_official_names_numbers_and_types(tf: Any) -> None:
    for module in OFFICIAL:
        pytest.importorskip(module, exc_type=ImportError)  # Triton's may want a newer protobuf.
    official = descriptor_pool.Default()
    compared = 0
    for name in proto.FILES:
        file = proto.pool().FindFileByName(f"{name}.proto")
        for top in file.message_types_by_name.values():
            for ours in _messages(top):
                try:
                    theirs = official.FindMessageTypeByName(ours.full_name)
                except KeyError:
                    assert ours.name in NOT_OFFICIAL, ours.full_name
                    continue
                for field in ours.fields:
                    if field.number == 1000:  # Ours.
                        continue
                    same = theirs.fields_by_name[field.name]
                    assert field.number == same.number, field.full_name
                    if field.name not in AS_BYTES:
                        assert field.type == same.type, field.full_name
                    assert _repeated(field) == _repeated(same) or field.name in AS_BYTES
                    compared += 1
    assert compared > 150


OFFICIAL = [
    "google.protobuf.any_pb2",
    "google.protobuf.wrappers_pb2",
    "tensorflow_serving.apis.get_model_metadata_pb2",
    "tensorflow_serving.apis.get_model_status_pb2",
    "tensorflow_serving.apis.inference_pb2",
    "tensorflow_serving.apis.model_management_pb2",
    "tensorflow_serving.apis.predict_pb2",
    "tritonclient.grpc.service_pb2",
]
NOT_OFFICIAL = {
    "Sharing",
    "BatchingParameters",
    "PrometheusConfig",
    "MonitoringConfig",
    "SSLConfig",
    "HealthCheckRequest",
    "HealthCheckResponse",
    "HealthListRequest",
    "HealthListResponse",
    "StatusesEntry",
    "ProfileOptions",
    "ProfileRequest",
    "ProfileToolData",
    "ProfileResponse",
    "TerminateRequest",
    "TerminateResponse",
    "MonitorRequest",
    "MonitorResponse",
    "ServerReflectionRequest",
    "ServerReflectionResponse",
    "ExtensionRequest",
    "ExtensionNumberResponse",
    "FileDescriptorResponse",
    "ListServiceResponse",
    "ServiceResponse",
    "ErrorResponse",
}
"""Ours, or in no package of Python that is tested with."""


NOT_SERVED = {
    # Methods of the official services that are not here, and how the page on serving says it.
    "tensorflow.serving.SessionService/SessionRun": "`SessionService`",
    "inference.GRPCInferenceService/CudaSharedMemoryStatus": "CUDA shared memory",
    "inference.GRPCInferenceService/CudaSharedMemoryRegister": "CUDA shared memory",
    "inference.GRPCInferenceService/CudaSharedMemoryUnregister": "CUDA shared memory",
    "inference.GRPCInferenceService/TraceSetting": "trace and\nlog settings",
    "inference.GRPCInferenceService/LogSettings": "trace and\nlog settings",
}
SERVICES = [
    "tensorflow_serving.apis.prediction_service_pb2",
    "tensorflow_serving.apis.model_service_pb2",
    "tensorflow_serving.apis.session_service_pb2",
    "tritonclient.grpc.service_pb2",
]


def test_every_method_of_the_official_services_is_here_or_said_not_to_be(
    tf: Any, server: Served
) -> None:
    official = {
        f"{service.full_name}/{method.name}"
        for name in SERVICES
        for service in pytest.importorskip(
            name, exc_type=ImportError
        ).DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    here = {path.decode().removeprefix("/") for path in server.server.methods}
    assert official - here == set(NOT_SERVED)
    page = Path(__file__).parents[4] / "docs" / "serving.md"
    text = page.read_text(encoding="utf-8")
    assert [words for words in NOT_SERVED.values() if words not in text] == []


def test_predict_through_the_official_stub(tf: Any, stub: Any) -> None:
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half"
    request.model_spec.version_label = "stable"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0, 5.0]))
    answer = stub.Predict(request, 30)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [2.5, 3.0, 4.5]
    assert list(answer.outputs["y"].float_val) == [2.5, 3.0, 4.5]
    assert answer.model_spec.version.value == 123


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(1.5, np.float64),
        np.array([-1, 2**31 - 1], np.int32),
        np.array([-(2**63)], np.int64),
        np.array([255], np.uint8),
        np.array([True, False]),
        np.array([1.5], np.float16),
        np.array([1 + 2j], np.complex64),
        np.array([2**64 - 1], np.uint64),
        np.array([b"a", b"\xff"], object),
        np.zeros((0, 3), np.float32),
    ],
    ids=lambda array: str(array.dtype),
)
# TensorFlow 2.21 sets an array's type in place, of which NumPy 2.5 disapproves.
@pytest.mark.filterwarnings("ignore:Setting the dtype on a NumPy array:DeprecationWarning")
def test_tensors_mean_the_same_to_tensorflow(tf: Any, array: np.ndarray[Any, Any]) -> None:
    kind = proto.message("tensorflow.TensorProto")
    sent = tf.make_tensor_proto(array).SerializeToString()
    read = tensors.read("x", kind.FromString(sent))
    assert (read.dtype, read.shape, read.tolist()) == (array.dtype, array.shape, array.tolist())
    back = type(tf.make_tensor_proto(0.0)).FromString(tensors.write(array))
    assert tf.make_ndarray(back).tolist() == array.tolist()
    assert tf.make_ndarray(back).shape == array.shape
    one_by_one = tf.io.parse_tensor(tensors.write(array), tf.as_dtype(back.dtype)).numpy()
    assert one_by_one.tolist() == array.tolist()


def test_classify_regress_and_multi_inference_take_official_examples(tf: Any, stub: Any) -> None:
    from tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2

    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(1.5)
    size = float(len(example.SerializeToString()))

    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "half"
    request.model_spec.signature_name = "classify_named"
    request.input.example_list.examples.append(example)
    (row,) = stub.Classify(request, 30).result.classifications
    assert [(c.label, c.score) for c in row.classes] == [("käse", size)]

    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "half"
    request.model_spec.signature_name = "regress_x_to_y"
    request.input.example_list_with_context.examples.append(example)
    request.input.example_list_with_context.context.CopyFrom(example)
    (value,) = stub.Regress(request, 30).result.regressions
    assert value.value == 2 * size

    request = inference_pb2.MultiInferenceRequest()
    task = request.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name = "half"
    task.model_spec.signature_name = "regress_x_to_y"
    request.input.example_list.examples.append(example)
    (result,) = stub.MultiInference(request, 30).results
    assert result.regression_result.regressions[0].value == size


def test_metadata_unpacks_as_the_official_message(tf: Any, stub: Any) -> None:
    from tensorflow_serving.apis import get_model_metadata_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "half"
    filled = get_model_metadata_pb2.SignatureDefMap()
    assert stub.GetModelMetadata(request, 30).metadata["signature_def"].Unpack(filled)
    assert filled.signature_def["serving_default"].inputs["x"].dtype == tf.float32.as_datatype_enum


def test_the_model_service_through_the_official_stub(
    tf: Any, server: Served, channel: grpc.Channel
) -> None:
    from tensorflow_serving.apis import (
        get_model_status_pb2,
        model_management_pb2,
        model_service_pb2_grpc,
    )

    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "half"
    newest, older = stub.GetModelStatus(status, 30).model_version_status
    assert (newest.version, newest.status.error_message) == (124, "no such file")
    assert older.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE

    reload = model_management_pb2.ReloadConfigRequest()
    config = reload.config.model_config_list.config.add(name="a", base_path="/a")
    config.model_version_policy.latest.num_versions = 2
    with grpc.insecure_channel(f"unix:{server.path}") as ours:
        stub = model_service_pb2_grpc.ModelServiceStub(ours)
        assert stub.HandleReloadConfigRequest(reload, 30).status.error_code == 0
    assert server.backend.reloaded == ["a"]
