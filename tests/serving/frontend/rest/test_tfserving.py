"""TensorFlow Serving's REST API: what goes in, what comes out, and what is said of mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from sublet.channel.codes import Code
from sublet.serving.control import model_directories
from support.numpy_backend import half_plus_two
from support.rest_server import Client, RestServer, rest_server

SAVED = Path(__file__).parents[3] / "data" / "savedmodels"
PREDICT = "/v1/models/half_plus_two:predict"


def test_rows_and_columns_are_answered_in_their_own_form(client: Client) -> None:
    rows = client.post(PREDICT, {"instances": [[1.0], [2.0], [5.0]]})
    assert rows.status == 200
    assert rows.headers["content-type"] == "application/json"
    assert rows.json == {"predictions": [[2.5], [3.0], [4.5]]}
    assert client.post(PREDICT, {"inputs": [[1.0]]}).json == {"outputs": [[2.5]]}
    assert client.post(PREDICT, {"inputs": {"x": [[1.0]]}}).json == {"outputs": [[2.5]]}


def test_a_list_of_numbers_suits_a_column_of_one(client: Client) -> None:
    assert client.post(PREDICT, {"instances": [1.0, 2.0, 5.0]}).json == {
        "predictions": [2.5, 3.0, 4.5]
    }


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/half_plus_two/versions/123:predict",
        "/v1/models/half_plus_two/versions/000123:predict",
        "/v1/models/half_plus_two/labels/stable:predict",
        "/V1/Models/half_plus_two:predict",
        "/v1/models/half%5Fplus_two:predict",
        "/v1/models/half_plus_two:predict?trace=1",
        "/v1/models/seven:predict",
    ],
)
def test_a_model_is_found_by_name_version_and_label(client: Client, path: str) -> None:
    assert client.post(path, {"instances": [[2]]}).json == {"predictions": [[3.0]]}


def test_a_signature_is_chosen_by_name(client: Client) -> None:
    asked = {"signature_name": "serving_default", "instances": [[1]]}
    assert client.post(PREDICT, asked).json == {"predictions": [[2.5]]}


def test_several_inputs_are_objects_and_bytes_come_back_as_base64(client: Client) -> None:
    rows = [
        {"a": [1, 2.5], "b": 3, "s_bytes": {"b64": "aGVsbG8="}},
        {"a": [0, -1], "b": 4, "s_bytes": "text"},
    ]
    path = "/v1/models/mixed:predict"
    assert client.post(path, {"instances": rows}).json == {
        "predictions": [
            {"a": [1.0, 2.5], "b": 3, "s_bytes": {"b64": "aGVsbG8="}},
            {"a": [0.0, -1.0], "b": 4, "s_bytes": {"b64": "dGV4dA=="}},
        ]
    }
    columns = {"a": [[1, 2]], "b": [3], "s_bytes": ["x"]}
    assert client.post(path, {"inputs": columns}).json == {
        "outputs": {"a": [[1.0, 2.0]], "b": [3], "s_bytes": [{"b64": "eA=="}]}
    }


@pytest.mark.parametrize(
    ("model", "given", "returned"),
    [
        ("floats", "[1, 2.5, -0.1]", "[1.0,2.5,-0.1]"),
        ("floats", "[16777215, 9e6, 1e-45, 3.4e38]", None),
        ("floats", "[NaN, Infinity, -Infinity, 0.1]", "[NaN, Infinity, -Infinity, 0.1]"),
        ("doubles", "[0.1, 1e300, 9007199254740991]", None),
        ("doubles", "[12345678901234567890123]", "[1.2345678901234568e22]"),
        ("ints", "[[2147483647, -2147483648]]", None),
        ("longs", "[9223372036854775807]", None),
        ("texts", '["\\u00e9", "", "\\u0000"]', None),
        ("texts", '[{"b64": "_-8="}]', '["\\ufffd\\ufffd"]'),
        ("texts", '[["a"], [{"b64": "Yg=="}]]', '[["a"],["b"]]'),
        ("truths", "[true, false]", None),
        ("halves", "[0.5, 1]", "[0.5,1.0]"),
        ("bytes", "[0, 255]", None),
        ("floats", "[[], []]", None),
        ("floats", "[[[1], [2]], [[3], [4]]]", "[[[1.0],[2.0]],[[3.0],[4.0]]]"),
    ],
)
def test_values_come_back_as_they_went(
    client: Client, model: str, given: str, returned: str | None
) -> None:
    seen = client.post(f"/v1/models/{model}:predict", b'{"instances": %b}' % given.encode())
    assert seen.status == 200, seen.body
    wanted = json.loads(returned or given)
    assert str(seen.json["predictions"]) == str(wanted) or seen.json["predictions"] == wanted


def test_a_scalar_is_a_tensor_in_columns(client: Client) -> None:
    assert client.post("/v1/models/floats:predict", {"inputs": 3}).json == {"outputs": 3.0}
    assert client.post("/v1/models/texts:predict", {"inputs": {"b64": "YQ=="}}).json == {
        "outputs": "a"
    }


def test_of_two_equal_keys_the_first_counts(client: Client) -> None:
    body = b'{"instances": [[1]], "instances": [[3]], "signature_name": "serving_default"}'
    assert client.post(PREDICT, body).json == {"predictions": [[2.5]]}


def test_examples_are_classified_and_regressed(client: Client) -> None:
    model = "/v1/models/half_plus_two"
    asked: dict[str, Any] = {"signature_name": "regress_x_to_y", "examples": [{"x": 80.0}]}
    assert client.post(f"{model}:regress", asked).json == {"results": [42.0]}
    asked = {"signature_name": "classify_x_to_y", "examples": [{"x": [20.0]}, {"x": 10.0}]}
    assert client.post(f"{model}/labels/stable:classify", asked).json == {
        "results": [[["", 12.0]], [["", 7.0]]]
    }
    asked = {"signature_name": "regress_x_to_y", "context": {"x": 1.0}, "examples": [{"x": 80.0}]}
    assert client.post(f"{model}:regress", asked).json == {"results": [42.0]}


def test_the_status_of_a_model_tells_of_each_version(client: Client) -> None:
    good = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    answer = {"model_version_status": [{"version": "123", **good}]}
    for path in ("", "/versions/123", "/labels/stable"):
        assert client.ask("GET", f"/v1/models/half_plus_two{path}").json == answer
    both = client.ask("GET", "/v1/models/mixed").json["model_version_status"]
    assert [each["version"] for each in both] == ["2", "1"]


def test_the_metadata_of_a_model_are_its_signatures(client: Client) -> None:
    answer = client.ask("GET", "/v1/models/seven/versions/7/metadata").json
    tensor = {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}],
            "unknown_rank": False,
        },
    }
    assert answer == {
        "model_spec": {"name": "seven", "signature_name": "", "version": "7"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": {**tensor, "name": "x:0"}},
                        "outputs": {"y": {**tensor, "name": "y:0"}},
                        "method_name": "tensorflow/serving/predict",
                        "defaults": {},
                    }
                }
            }
        },
    }
    unknown = client.ask("GET", "/v1/models/texts/metadata").json
    answer = unknown["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["t"]
    assert answer["tensor_shape"] == {"dim": [], "unknown_rank": True}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("saved_model_half_plus_two_cpu", "half_plus_two_model"),
        ("saved_model_half_plus_two_2_versions", "saved_model_half_plus_two_2_versions"),
    ],
)
def test_metadata_are_what_tensorflow_serving_says_of_the_same_model(model: str, body: str) -> None:
    wanted = json.loads((SAVED / "configs" / f"{body}_metadata.json").read_text())
    name = wanted["model_spec"]["name"]
    signatures = model_directories.signatures(str(SAVED / model / "00000123"))
    assert signatures is not None
    with rest_server() as mine, mine.client() as client:
        made: Any = {key: (one, half_plus_two) for key, one in signatures.items()}
        mine.do(lambda: mine.backend.serve(name, 123, **made))
        assert client.ask("GET", f"/v1/models/{name}/metadata").json == wanted


MISTAKES: list[tuple[str, bytes | str, int, str]] = [
    # Documents
    ("half_plus_two", b"", 400, "JSON Parse error: The document is empty"),
    ("half_plus_two", b"  ", 400, "JSON Parse error: The document is empty. at offset: 2"),
    (
        "half_plus_two",
        '{"é": "x',
        400,
        "JSON Parse error: Missing a closing quotation mark in string. at offset: 9",
    ),
    (
        "half_plus_two",
        '{"a" 1}',
        400,
        "JSON Parse error: Missing a colon after a name of object member. at offset: 5",
    ),
    (
        "half_plus_two",
        '{"a": "\\x"}',
        400,
        "JSON Parse error: Invalid escape character in string. at offset: 7",
    ),
    ("half_plus_two", "instances = [1]", 400, "JSON Parse error: Invalid value. at offset: 0"),
    (
        "half_plus_two",
        '{"instances": [1 2]}',
        400,
        "JSON Parse error: Missing a comma or ] after an array element. at offset: 17",
    ),
    (
        "half_plus_two",
        '{"instances": [1] "x"}',
        400,
        "JSON Parse error: Missing a comma or } after an object member. at offset: 18",
    ),
    (
        "half_plus_two",
        "{} x",
        400,
        "JSON Parse error: The document root must not be followed by other values. at offset: 3",
    ),
    (
        "half_plus_two",
        '{"instances": [1e400]}',
        400,
        "JSON Parse error: Number too big to be stored in double. at offset: 15",
    ),
    (
        "half_plus_two",
        '{"instances": [NaN, -1e400]}',
        400,
        "JSON Parse error: Number too big to be stored in double. at offset: 15",
    ),
    (
        "half_plus_two",
        b'{"instances": ["\xff"]}',
        400,
        "JSON Parse error: Invalid encoding in string. at offset: 16",
    ),
    ("half_plus_two", "[1]", 400, "JSON Value: [\n    1\n] Is not object"),
    # Keys
    ("half_plus_two", "{}", 400, "Missing 'inputs' or 'instances' key"),
    (
        "half_plus_two",
        '{"inputs": 1, "instances": 2}',
        400,
        'JSON Value: {\n    "inputs": 1,\n    "instances": 2\n} Not formatted correctly expecting '
        "only one of 'inputs' or 'instances' keys to exist ",
    ),
    (
        "half_plus_two",
        '{"instances": 1}',
        400,
        "JSON Value: {\n    \"instances\": 1\n} Excepting 'instances' to be an list/array",
    ),
    (
        "half_plus_two",
        '{"instances": []}',
        400,
        "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array",
    ),
    (
        "half_plus_two",
        '{"signature_name": 5, "instances": [1]}',
        400,
        'JSON Value: {\n    "signature_name": 5,\n    "instances": [\n        1\n    ]\n} '
        "not formatted correctly. 'signature_name' key must be a string value.",
    ),
    (
        "half_plus_two",
        '{"signature_name": "other", "instances": [1]}',
        400,
        'Serving signature name: "other" not found in signature def',
    ),
    # Models
    ("nothing", '{"instances": [1]}', 404, "Servable not found for request: Latest(nothing)"),
    ("nothing", "{", 400, "JSON Parse error: Missing a name for object member. at offset: 1"),
    (
        "half_plus_two/versions/99",
        '{"instances": [1]}',
        404,
        "Servable not found for request: Specific(half_plus_two, 99)",
    ),
    (
        "half_plus_two/labels/none",
        '{"instances": [1]}',
        400,
        "Unrecognized servable version label: none",
    ),
    (
        "half_plus_two/versions/99999999999999999999",
        '{"instances": [1]}',
        400,
        "Failed to convert version: 99999999999999999999 to numeric.",
    ),
    # Types
    (
        "half_plus_two",
        '{"instances": ["x"]}',
        400,
        "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: "
        'JSON Value: "x" Type: String is not of expected type: float',
    ),
    (
        "ints",
        '{"instances": [1, 2.5]}',
        400,
        "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
        "JSON Value: 2.5 Type: Number is not of expected type: int32",
    ),
    (
        "ints",
        '{"inputs": [true]}',
        400,
        "JSON Value: true Type: True is not of expected type: int32",
    ),
    (
        "ints",
        '{"inputs": 2147483648}',
        400,
        "JSON Value: 2147483648 Type: Number is not of expected type: int32",
    ),
    (
        "floats",
        '{"inputs": [1, null]}',
        400,
        "JSON Value: null Type: Null is not of expected type: float",
    ),
    (
        "floats",
        '{"inputs": [1, false]}',
        400,
        "JSON Value: false Type: False is not of expected type: float",
    ),
    (
        "floats",
        '{"inputs": 16777217}',
        400,
        "Cannot convert JSON value: 16777217 to float without loss of precision.",
    ),
    (
        "floats",
        '{"inputs": 1e300}',
        400,
        "Cannot convert JSON value: 1e+300 to float without loss of precision.",
    ),
    (
        "doubles",
        '{"inputs": 9007199254740993}',
        400,
        "Cannot convert JSON value: 9007199254740993 to double without loss of precision.",
    ),
    ("texts", '{"inputs": {"b64": "a"}}', 400, "Unable to base64 decode"),
    ("texts", '{"inputs": {"b64": "!!!!"}}', 400, "Unable to base64 decode"),
    (
        "texts",
        '{"inputs": [{"b64": 5}]}',
        400,
        'JSON Value: {\n    "b64": 5\n} not formatted correctly for base64 data',
    ),
    ("complexes", '{"inputs": 1}', 501, "Conversion of JSON Value: 1 to type: complex64"),
    # Shapes
    (
        "ints",
        '{"instances": [[1, 2], [3, 4, 5]]}',
        400,
        "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
        "Expecting tensor size: 2 but got: 3",
    ),
    (
        "ints",
        '{"instances": [[1, 2], [[3, 4]]]}',
        400,
        "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
        "Expecting shape [2] but got: [1,2]",
    ),
    (
        "ints",
        '{"inputs": [[1, 2], [3]]}',
        400,
        "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
    ),
    (
        "ints",
        '{"inputs": [[1], 2]}',
        400,
        "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
    ),
    ("ints", '{"inputs": [1, [2]]}', 400, "Encountered list at unexpected level: 1 expected < 1"),
    (
        "ints",
        '{"instances": [{"t": 1}, 2]}',
        400,
        "Expecting object but got list at item 1 of input list",
    ),
    (
        "ints",
        '{"instances": [1, {"t": 2}]}',
        400,
        "Expecting value/list but got object at item 1 of input list",
    ),
    (
        "half_plus_two",
        '{"instances": [[1, 2]]}',
        400,
        'Input "x" has shape [1,2], but the signature takes [-1,1]. Send rows of that shape.',
    ),
    # Names
    (
        "mixed",
        '{"instances": [1]}',
        400,
        "instances is a plain list, but expecting list of objects as multiple input tensors "
        "required as per tensorinfo_map",
    ),
    (
        "mixed",
        '{"inputs": [1]}',
        400,
        "inputs is a plain value/list, but expecting an object as multiple input tensors "
        "required as per tensorinfo_map",
    ),
    ("mixed", '{"inputs": {"a": [[1, 2]]}}', 400, "Missing named input: b in 'inputs' object."),
    (
        "mixed",
        '{"instances": [{"a": [1, 2], "c": 1}]}',
        400,
        "Failed to process element: 0 key: c of 'instances' list. Error: INVALID_ARGUMENT: "
        "JSON object: does not have named input: c",
    ),
    (
        "mixed",
        '{"instances": [{"b": 1}]}',
        400,
        "Failed to process element: 0 of 'instances' list. JSON object: "
        '{\n    "b": 1\n} keys must be equal to: a,b,s_bytes',
    ),
]


@pytest.mark.parametrize(("model", "body", "status", "text"), MISTAKES)
def test_a_mistake_is_named_in_tensorflow_servings_words(
    client: Client, model: str, body: bytes | str, status: int, text: str
) -> None:
    seen = client.post(
        f"/v1/models/{model}:predict", body if isinstance(body, bytes) else body.encode()
    )
    assert (seen.status, seen.json) == (status, {"error": text})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"context": [], "examples": []}, "Example must be JSON object but got JSON Array"),
        ({"examples": {}}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": [[]]}, "Example must be JSON object but got JSON Array"),
        ({"examples": [{"n": [10, None]}]}, "n has element with unexpected JSON type: Null"),
        ({"examples": [{"n": [10, 10.0]}]}, "in feature: n expecting type: int64"),
        ({"examples": [{"n": [10, {"t": 1}]}]}, "n has element with unexpected JSON type: Object"),
        ({"examples": [{"n": [[10], 2]}]}, "n has element with unexpected JSON type: Array"),
        ({"examples": [{"n": 2**64 - 13}]}, "n has uint64 element. Only int64 is supported."),
        ({"examples": [{"n": 1e308}]}, "to float without loss of precision."),
        ({"examples": [{"n": {"b64": "="}}]}, "Unable to base64 decode"),
        ({"examples": [{"x": 1.0}], "signature_name": 1}, "must be a string value."),
        (
            {"examples": [{"x": 1.0}], "signature_name": "no"},
            "No signature was found with the name: no",
        ),
    ],
)
@pytest.mark.parametrize("api", ["classify", "regress"])
def test_a_mistake_in_examples_is_named(client: Client, api: str, body: Any, text: str) -> None:
    seen = client.post(f"/v1/models/half_plus_two:{api}", body)
    assert seen.status == 400
    assert text in seen.json["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/versions/1", 400, "Missing model name in request."),
        ("GET", "/v1/models/foo:predict", 400, "Malformed request: GET /v1/models/foo:predict"),
        ("POST", "/v1/models/foo/metadata", 400, "Malformed request: POST /v1/models/foo/metadata"),
        ("POST", "/v1/models/a:PREDICT", 400, "Malformed request: POST /v1/models/a:PREDICT"),
        ("PUT", PREDICT, 400, f"Malformed request: PUT {PREDICT}"),
        ("GET", "/v1/models/no", 404, "Could not find any versions of model no"),
        ("GET", "/v1/models/mixed/versions/9", 404, "Could not find version 9 of model mixed"),
        ("GET", "/v1/models/mixed/labels/x", 400, "Unrecognized servable version label: x"),
        ("GET", "/v1/models/no/metadata", 404, "Servable not found for request: Latest(no)"),
        # Names are keys of a table, never paths.
        ("GET", "/v1/models/%2e%2e%2f%2e%2e", 404, "Could not find any versions of model ../.."),
        ("GET", "/v1/models/..", 404, "Could not find any versions of model .."),
        ("GET", "/v1/models//mixed", 400, "Malformed request: GET /v1/models//mixed"),
        ("GET", "/v1/models/a%00b", 404, "Could not find any versions of model a\0b"),
        ("GET", "/v1/models/%F0%9F%A6%86", 404, "Could not find any versions of model 🦆"),
        ("GET", "/v1/models/%ff%zz", 404, "Could not find any versions of model \ufffd%zz"),
    ],
)
def test_a_path_that_means_nothing_is_refused(
    client: Client, method: str, path: str, status: int, text: str
) -> None:
    seen = client.ask(method, path)
    assert (seen.status, seen.json) == (status, {"error": text})


def test_other_paths_are_not_found_and_the_root_is_alive(client: Client) -> None:
    assert client.ask("GET", "/").status == 200
    assert client.ask("GET", "/healthz").status == 200
    assert client.ask("GET", "/v3/models").status == 404
    assert client.ask("POST", "/").status == 404


def test_metrics_are_text_for_prometheus(client: Client) -> None:
    seen = client.ask("GET", "/monitoring/prometheus/metrics")
    assert seen.headers["content-type"].startswith("text/plain")
    assert b"requests 1" in seen.body


def test_each_call_is_counted_with_how_it_ended(served: RestServer, client: Client) -> None:
    served.backend.counted.clear()
    client.post(PREDICT, {"instances": [[1]]})
    client.post(
        "/v1/models/half_plus_two:regress",
        {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}]},
    )
    client.post(PREDICT, {"instances": 5})
    client.post("/v1/models/nothing:classify", {"examples": [{}]})
    assert served.backend.counted == [
        ("half_plus_two", "Predict", "REST", 0),
        ("half_plus_two", "Regress", "REST", 0),
        ("half_plus_two", "Predict", "REST", Code.INVALID_ARGUMENT),
        ("nothing", "Classify", "REST", Code.NOT_FOUND),
    ]


@pytest.mark.parametrize("path", [PREDICT, "/v2/models/half_plus_two/infer"])
def test_a_call_for_a_flooded_model_is_refused_before_its_body_is_read(
    client: Client, served: RestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.backend, "full", True)
    assert client.post(path, b"no JSON").status == 503
