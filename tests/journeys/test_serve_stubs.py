"""A real server and the official stubs, unmodified: versions, labels, new configurations."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from sublet.serving.frontend.proto import message
from support.sandbox import PATIENCE, Sandbox, wait_for
from support.servers import BAD, HALF, THREE, Load, Server, place

TOKEN = "only-for-the-shopkeeper"


class Client:
    """The official messages and stubs over one channel."""

    def __init__(self, address: str) -> None:
        # They load TensorFlow, so only when a test needs them.
        from tensorflow import make_ndarray, make_tensor_proto
        from tensorflow_serving.apis import (
            get_model_metadata_pb2,
            get_model_status_pb2,
            model_management_pb2,
            model_service_pb2_grpc,
            predict_pb2,
            prediction_service_pb2_grpc,
        )

        self._ndarray, self._tensor = make_ndarray, make_tensor_proto
        self._predict = predict_pb2.PredictRequest
        self._metadata = get_model_metadata_pb2.GetModelMetadataRequest
        self._status = get_model_status_pb2.GetModelStatusRequest
        self._config = model_management_pb2.ReloadConfigRequest
        self._channel = grpc.insecure_channel(address)
        self.token = ""
        """What it shows when it reloads."""
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._service = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(
        self, name: str, value: float, version: int | None = None, label: str | None = None
    ) -> tuple[float, int]:
        """The answer, and the version that gave it."""
        request = self._predict()
        request.model_spec.name = name
        if version is not None:
            request.model_spec.version.value = version
        if label is not None:
            request.model_spec.version_label = label
        request.inputs["x"].CopyFrom(self._tensor([[value]], dtype="float32"))
        reply = self._service.Predict(request, timeout=30)
        answer = self._ndarray(reply.outputs["y"]).item()
        return answer, reply.model_spec.version.value

    def signatures(self, name: str) -> set[str]:
        request = self._metadata(metadata_field=["signature_def"])
        request.model_spec.name = name
        packed = self._service.GetModelMetadata(request, timeout=30).metadata["signature_def"]
        from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap

        found = SignatureDefMap()
        packed.Unpack(found)
        return set(found.signature_def)

    def states(self, name: str) -> dict[int, int]:
        request = self._status()
        request.model_spec.name = name
        rows = self._models.GetModelStatus(request, timeout=30).model_version_status
        return {row.version: row.state for row in rows}

    def reload(self, text: str) -> tuple[int, str]:
        """Replace the configuration by this text; the code and the message of the answer."""
        from google.protobuf import text_format

        request = self._config()
        text_format.Parse(text, request.config)
        try:
            status = self._models.HandleReloadConfigRequest(
                request, timeout=60, metadata=[("authorization", f"Bearer {self.token}")]
            ).status
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code().value[0], failed.details()
        return status.error_code, status.error_message

    def close(self) -> None:
        self._channel.close()


class Shop:
    """Models on the disk, a server of a config file, and a client."""

    def __init__(self, sandbox: Sandbox, root: Path) -> None:
        self.root = root
        place(HALF, root, "a", 1)
        place(THREE, root, "a", 2)
        place(HALF, root, "b", 1)
        place(BAD, root, "bad", 1)
        self.file = root / "models.config"
        self.file.write_text(self.first)
        self.server = Server(
            sandbox,
            f"--model_config_file={self.file}",
            "--model_config_file_poll_wait_seconds=0.1",
            "--file_system_poll_wait_seconds=0.1",
            "--allow_version_labels_for_unavailable_models",
            *("--enable_profiler", "--allow_shared_memory"),
            f"--grpc_socket_path={root}/grpc.sock",
            *("--allow_reload", f"--reload_token_file={self._token(root / 'token')}"),
        )
        self.client = Client(self.server.grpc)
        self.client.token = TOKEN

    @staticmethod
    def _token(path: Path) -> Path:
        path.write_text(TOKEN)
        path.chmod(0o600)
        return path

    def config(self, *models: str) -> str:
        """As in a file; a model is its name, and what is said about it beside its path."""
        parts = [model.partition(" ") for model in models]
        inside = " ".join(
            f'config {{ name: "{name}" base_path: "{self.root / name}" '
            f'model_platform: "tensorflow" {rest} }}'
            for name, _, rest in parts
        )
        return f"model_config_list {{ {inside} }}"

    @property
    def first(self) -> str:
        """What it starts with, and what each test leaves."""
        return self.config(
            'a model_version_policy { all {} } version_labels { key: "stable" value: 1 }', "b"
        )


@pytest.fixture(scope="module")
def opened(shared_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(shared_sandbox, tmp_path_factory.mktemp("shop"))
    yield shop
    shop.client.close()
    assert shop.server.close() == 0


@pytest.fixture
def shop(opened: Shop) -> Iterator[Shop]:
    """As it was at first, afterwards too."""
    yield opened
    assert opened.client.reload(opened.first) == (0, "")


def test_two_versions_are_served_side_by_side(shop: Shop) -> None:
    assert shop.client.predict("a", 1.0) == (3.5, 2)
    assert shop.client.predict("a", 1.0, version=1) == (2.5, 1)
    assert shop.client.states("a") == {1: 30, 2: 30}
    assert "serving_default" in shop.client.signatures("a")


def test_tritons_client_reads_what_became_of_the_calls(shop: Shop) -> None:
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(shop.server.grpc) as client:
        (before,) = client.get_inference_statistics("a", "1").model_stats
        for _ in range(3):
            shop.client.predict("a", 1.0, version=1)
        # A front end that is slow to say what it has counted is not waited for.
        (after,) = wait_for(
            lambda: [
                now
                for now in client.get_inference_statistics("a", "1").model_stats
                if now.inference_count >= before.inference_count + 3
            ],
            "all are counted",
        )
    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 3
    assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    assert after.inference_stats.fail.count == 0


def test_a_label_leads_to_its_version_and_can_be_moved(shop: Shop) -> None:
    assert shop.client.predict("a", 1.0, label="stable") == (2.5, 1)
    moved = shop.config(
        'a model_version_policy { all {} } version_labels { key: "stable" value: 2 }', "b"
    )
    assert shop.client.reload(moved) == (0, "")
    assert shop.client.predict("a", 1.0, label="stable") == (3.5, 2)
    with pytest.raises(grpc.RpcError) as info:
        shop.client.predict("a", 1.0, label="canary")
    failed: Any = info.value
    assert failed.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failed.details() == "Unrecognized servable version label: canary"


def test_a_label_on_a_version_that_is_not_there_changes_nothing(shop: Shop) -> None:
    wanted = shop.config('a version_labels { key: "stable" value: 7 }')
    code, text = shop.client.reload(wanted)
    assert code == 9
    assert text == (
        "Request to assign label to version 7 of model a, "
        "which is not currently available for inference"
    )
    assert shop.client.predict("b", 1.0) == (2.5, 1)
    assert shop.client.predict("a", 1.0, label="stable") == (2.5, 1)


def test_a_new_configuration_replaces_all_models(shop: Shop) -> None:
    assert shop.client.reload(
        shop.config("a model_version_policy { specific { versions: 1 } }")
    ) == (
        0,
        "",
    )
    assert shop.client.predict("a", 1.0) == (2.5, 1)
    with pytest.raises(grpc.RpcError) as info:
        shop.client.predict("b", 1.0)
    failed: Any = info.value
    assert failed.code() is grpc.StatusCode.NOT_FOUND
    assert failed.details() == "Servable not found for request: Latest(b)"


def test_a_configuration_with_a_path_that_is_not_there_changes_nothing(shop: Shop) -> None:
    code, text = shop.client.reload(shop.config("gone"))
    assert code == 3
    assert "Could not find base path" in text
    assert shop.client.predict("b", 1.0) == (2.5, 1)


def test_a_configuration_with_a_bad_model_says_so_and_serves_the_others(shop: Shop) -> None:
    code, text = shop.client.reload(shop.config("bad", "b"))
    assert code == 2
    assert text == "Some models did not become available: {{name: bad version: 1}}"
    assert shop.client.predict("b", 1.0) == (2.5, 1)


def test_a_changed_config_file_counts_and_a_broken_one_does_not(shop: Shop) -> None:
    shop.file.write_text("improperly formatted file")
    wait_for(
        lambda: any("models.config, line 1" in line for line in shop.server.errors),
        "the file is complained about",
    )
    assert shop.client.predict("b", 1.0) == (2.5, 1)
    shop.file.write_text(shop.config("b"))
    wait_for(lambda: shop.server.get("/v1/models/a")[0] == 404, "only b is served")
    shop.file.write_text(shop.first)
    wait_for(lambda: shop.server.states("a") == {1: "AVAILABLE", 2: "AVAILABLE"}, "a is back")


def test_the_unix_socket_serves_the_same_and_its_owner_reloads_without_a_token(shop: Shop) -> None:
    client = Client(f"unix:{shop.root}/grpc.sock")
    try:
        assert client.predict("b", 2.0) == (3.0, 1)
        assert client.reload(shop.config("b")) == (0, "")
        assert shop.client.predict("b", 2.0) == (3.0, 1)
    finally:
        client.close()


def test_tritons_client_leaves_tensors_in_shared_memory(shop: Shop) -> None:
    from tritonclient import http
    from tritonclient.utils import shared_memory

    x = np.arange(1 << 18, dtype=np.float32)
    memory = shared_memory.create_shared_memory_region("r", f"sublet-{os.getpid()}", 2 * x.nbytes)
    client = http.InferenceServerClient(shop.server.facts["rest"].removeprefix("http://"))
    try:
        shared_memory.set_shared_memory_region(memory, [x])
        client.register_system_shared_memory("r", f"sublet-{os.getpid()}", 2 * x.nbytes)
        given, wanted = http.InferInput("x", x.shape, "FP32"), http.InferRequestedOutput("y")
        given.set_shared_memory("r", x.nbytes)
        wanted.set_shared_memory("r", x.nbytes, offset=x.nbytes)
        client.infer("b", [given], outputs=[wanted])
        y = shared_memory.get_contents_as_numpy(memory, np.float32, x.shape, x.nbytes)
        assert (y == x / 2 + 2).all()
        client.unregister_system_shared_memory()
    finally:
        client.close()
        shared_memory.destroy_shared_memory_region(memory)


def unload(server: Server, name: str) -> int:
    connection = server.connection()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    connection.request("POST", f"/v2/repository/models/{name}/unload", "{}", headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_tritons_client_unloads_models_and_loads_them_by_their_names(
    shop: Shop, tmp_path: Path
) -> None:
    from tritonclient.http import InferenceServerClient

    allowed = {"Authorization": f"Bearer {TOKEN}"}
    client = InferenceServerClient(shop.server.facts["rest"].removeprefix("http://"))
    try:
        client.unload_model("b", allowed)
        assert not client.is_model_ready("b")
        assert shop.client.predict("a", 1.0) == (3.5, 2)
        client.load_model("b", allowed)
        assert shop.client.predict("b", 2.0) == (3.0, 1)
        # One that was never served, and lies beside those that were.
        place(THREE, shop.root, "c", 1)
        client.load_model("c", allowed)
        assert shop.client.predict("c", 1.0) == (3.5, 1)
        # Two at the same time: neither undoes the other.
        with ThreadPoolExecutor(2) as both:
            assert list(both.map(partial(unload, shop.server), ("b", "c"))) == [200, 200]
        assert not client.is_model_ready("b")
        assert not client.is_model_ready("c")
        place(HALF, tmp_path, "elsewhere", 1)
        (shop.root / "odd").symlink_to(tmp_path / "elsewhere")
        for name in ("nothing", "..", ".", "odd", "a/1", str(tmp_path / "elsewhere")):
            with pytest.raises(InferenceServerException, match=r"There is no model|Nothing is"):
                client.load_model(name, allowed)
        with pytest.raises(InferenceServerException, match="There is no model nothing"):
            client.unload_model("nothing", allowed)
        with pytest.raises(InferenceServerException, match="--reload_token_file"):
            client.unload_model("a")
        assert shop.client.predict("a", 1.0) == (3.5, 2)
    finally:
        client.close()


def test_who_has_no_token_cannot_reload_over_the_network(shop: Shop) -> None:
    client = Client(shop.server.grpc)
    try:
        code, text = client.reload(shop.config("b"))
        assert code == grpc.StatusCode.UNAUTHENTICATED.value[0]
        assert "--reload_token_file" in text
        assert client.predict("a", 1.0) == (3.5, 2)
    finally:
        client.close()


def test_a_client_can_only_name_models_beside_those_of_the_beginning(
    shop: Shop, tmp_path: Path
) -> None:
    place(HALF, tmp_path, "elsewhere", 1)
    (shop.root / "link").symlink_to(tmp_path / "elsewhere")
    text = 'model_config_list {{ config {{ name: "m" base_path: "{}" }} }}'
    for path in (tmp_path / "elsewhere", tmp_path / "nothing", shop.root / "link"):
        code, answer = shop.client.reload(text.format(path))
        assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "is not below a directory from which" in answer
    assert shop.client.predict("a", 1.0) == (3.5, 2)


def test_tensorflows_own_client_profiles_the_models_and_saves_what_it_gets(
    shop: Shop, tmp_path: Path
) -> None:
    from tensorflow.profiler.experimental import client

    address = f"grpc://{shop.server.grpc}"
    with Load(shop.server, "b", [2.5]):
        client.trace(address, str(tmp_path / "logs"), 300, num_tracing_attempts=20)
        seen = client.monitor(address, 500)
    (profile,) = (tmp_path / "logs").glob("plugins/profile/*/*.xplane.pb")
    # The names of the model's operations are in it; the server wrote nothing by itself.
    assert b"Mul:Mul" in profile.read_bytes()
    assert str(shop.server.sandbox.home).encode() not in profile.read_bytes()
    assert [path.name for path in profile.parent.iterdir()] == [profile.name]
    assert re.search(r"^b version 1: [0-9.]+ calls/s, 0 failed, ", seen, re.M)


def test_a_profile_is_one_at_a_time_can_be_ended_and_is_bounded(shop: Shop) -> None:
    def ask(method: str, answer: str, request: Any) -> Any:
        call = channel.unary_unary(
            f"/tensorflow.ProfilerService/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=message(f"tensorflow.{answer}").FromString,
        )
        return call.future(request, timeout=PATIENCE)

    def profile(session: str, seconds: float) -> Any:
        request = message("tensorflow.ProfileRequest")(session_id=session)
        request.opts.duration_ms = int(seconds * 1000)
        return ask("Profile", "ProfileResponse", request)

    with grpc.insecure_channel(shop.server.grpc) as channel, Load(shop.server, "b", [2.5]):
        assert profile("x", 61).exception().code() is grpc.StatusCode.INVALID_ARGUMENT
        long = profile("long", 60)

        def is_refused() -> bool:
            wrong = profile("other", 0.01).exception()
            return wrong is not None and wrong.code() is grpc.StatusCode.ALREADY_EXISTS

        wait_for(is_refused, "the long profile runs")
        end = message("tensorflow.TerminateRequest")
        ask("Terminate", "TerminateResponse", end(session_id="another")).result()
        assert is_refused()
        ask("Terminate", "TerminateResponse", end(session_id="long")).result()
        assert [one.name for one in long.result().tool_data] == ["xplane.pb"]
        # Whoever gives up ends its profile: the next one is taken.
        profile("forgotten", 60).cancel()
        wait_for(lambda: profile("next", 0.05).exception() is None, "the next profile is taken")
