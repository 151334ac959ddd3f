"""TLS as TensorFlow Serving's clients know it: a real client of gRPC over real certificates."""

from pathlib import Path

import grpc
import numpy as np
import pytest

from sublet.errors import BadRequest
from sublet.serving.control.config_files import read_tls
from sublet.serving.frontend.proto import serving, tensors
from sublet.serving.tls import Tls, check
from support.certificates import Pair, make_pair, needs_openssl
from support.grpc_server import Served, served

pytestmark = needs_openssl
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    """The server's and a client's."""
    folder = tmp_path_factory.mktemp("pairs")
    return make_pair(folder, "server"), make_pair(folder, "client")


def _double(address: str, credentials: grpc.ChannelCredentials | None, rows: int = 1) -> float:
    request = serving("PredictRequest")()
    request.model_spec.name = "half"
    x = np.full((rows, 1), 5, np.float32)
    request.inputs["x"].dtype = 1
    for size in x.shape:
        request.inputs["x"].tensor_shape.dim.add(size=size)
    request.inputs["x"].tensor_content = x.tobytes()
    channel = (
        grpc.insecure_channel(address, LARGE)
        if credentials is None
        else grpc.secure_channel(address, credentials, LARGE)
    )
    with channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        answer = serving("PredictResponse").FromString(
            call(request.SerializeToString(), timeout=30)
        )
    y = tensors.read("y", answer.outputs["y"])
    assert len(y) == rows
    assert (y == y[0]).all()
    return float(y[0, 0])


def _credentials(server: Pair, client: Pair | None = None) -> grpc.ChannelCredentials:
    key, chain = (None, None) if client is None else (client.key.encode(), client[1].encode())
    return grpc.ssl_channel_credentials(server.certificate.encode(), key, chain)


def _refused(server: Served, credentials: grpc.ChannelCredentials | None) -> None:
    with pytest.raises(grpc.RpcError) as wrong:
        _double(server.address, credentials)
    assert wrong.value.code() is grpc.StatusCode.UNAVAILABLE


def test_clients_that_trust_the_certificate_are_answered_and_others_are_not(
    tmp_path: Path, pairs: tuple[Pair, Pair]
) -> None:
    ours, other = pairs
    with served(tmp_path, tls=Tls(*ours)) as server:
        assert _double(server.address, _credentials(ours)) == 4.5
        assert _double(server.address, _credentials(ours), rows=2_000_000) == 4.5
        _refused(server, _credentials(other))
        _refused(server, None)
        assert _double(f"unix:{server.path}", None) == 4.5


def test_clients_must_show_a_certificate_if_it_is_asked_for(
    tmp_path: Path, pairs: tuple[Pair, Pair]
) -> None:
    ours, client = pairs
    tls = Tls(*ours, custom_ca=client.certificate, client_verify=True)
    with served(tmp_path, tls=tls) as server:
        assert _double(server.address, _credentials(ours, client)) == 4.5
        _refused(server, _credentials(ours))


def test_the_file_of_tensorflow_serving_is_read(pairs: tuple[Pair, Pair]) -> None:
    ours, _ = pairs
    lines = [f'"{line}\\n"' for line in ours.key.splitlines()]
    text = "server_key: " + "\n  ".join(lines) + f"\nserver_cert: {ours.certificate!r}\n"
    tls = read_tls(text + "client_verify: true")
    assert tls == Tls(*ours, client_verify=True)
    check(tls, "x")


def test_keys_and_certificates_that_are_no_pair_are_refused(pairs: tuple[Pair, Pair]) -> None:
    ours, other = pairs
    for tls in (
        Tls(ours.key, other.certificate),
        Tls("", ""),
        Tls(*ours, custom_ca="nonsense"),
    ):
        with pytest.raises(BadRequest, match="--ssl_config_file x: the key and the certificates"):
            check(tls, "--ssl_config_file x")
