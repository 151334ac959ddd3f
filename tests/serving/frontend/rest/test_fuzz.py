"""Whatever a client sends, it gets valid HTTP with JSON in it, and the server goes on."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.serving.frontend.rest import Limits
from support.rest_server import RestServer, request, rest_server

MODELS = ["floats", "ints", "texts", "truths", "mixed", "half_plus_two", "seven", "nothing"]
keys = st.sampled_from(["instances", "inputs", "examples", "context", "signature_name", "t", "b64"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["regress_x_to_y", "classify_x_to_y", "t", "FP32", "BYTES", "INT32"])
)
v2_keys = st.sampled_from(["inputs", "outputs", "name", "datatype", "shape", "data", "parameters"])
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | v2_keys, inner, max_size=4),
    max_leaves=15,
)
bodies = (
    st.binary(max_size=200)
    | documents.map(lambda document: json.dumps(document).encode())
    | st.dictionaries(keys, documents, max_size=3).map(lambda d: json.dumps(d).encode())
)
paths = st.builds(
    "/v1/models/{}:{}".format, st.sampled_from(MODELS), st.sampled_from(["predict", "regress"])
) | st.builds("/v2/models/{}/infer".format, st.sampled_from(MODELS))


def _json(body: bytes) -> Any:
    return json.loads(body)


@given(st.lists(st.tuples(paths, bodies), min_size=1, max_size=5))
def test_any_body_is_answered(served: RestServer, asked: list[tuple[str, bytes]]) -> None:
    with served.client() as client:
        client.send(b"".join(request("POST", path, body) for path, body in asked))
        for _ in asked:
            seen = client.get()
            assert seen.status in (200, 400, 404, 501)
            if seen.status == 200:
                assert _json(seen.body).keys() & {"predictions", "outputs", "results"}
            else:
                assert _json(seen.body).keys() == {"error"}


whole = request("POST", "/v1/models/floats:predict", b'{"instances": [1]}', "Connection: close")


@pytest.fixture(scope="module")
def impatient() -> Iterator[RestServer]:
    with rest_server(Limits(slow=0.03, sweep=0.01)) as made:
        yield made


@given(
    st.lists(
        st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 8), st.binary(max_size=8)),
        max_size=4,
    )
)
def test_a_damaged_request_is_answered_or_cut_off(
    impatient: RestServer, damages: list[tuple[int, int, bytes]]
) -> None:
    raw = whole
    for place, length, put in damages:
        raw = raw[:place] + put + raw[place + length :]
    with impatient.client() as client:
        client.send(raw)
        seen = client.get()
        assert seen.status in (200, *range(400, 600))
        assert _json(seen.body or b"{}") is not None
    with impatient.client() as client:
        assert client.ask("GET", "/healthz").json == {"status": "alive"}
