"""Configuration files of TensorFlow Serving become records, or errors that say what to mend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import BadRequest
from sublet.serving.control.config_files import (
    METRICS_PATH,
    All,
    Latest,
    ModelConfig,
    Specific,
    decode_models,
    read_batching,
    read_models,
    read_monitoring,
)
from sublet.serving.frontend.proto import serving

TWO = """
# as in TensorFlow Serving's own tests
model_config_list: {
  config: {
    name: "half_plus_two",
    base_path: "/models/two",
    model_platform: "tensorflow"
    model_version_policy { specific { versions: 123 versions: 124 versions: 123 } }
    version_labels { key: "stable" value: 123 }
  },
  config: {
    name: "half_plus_three",
    base_path: "/models/three",
    model_type: TENSORFLOW
    model_version_policy { all {} }
    sharing { isolate: true pin: true weight: 2.5 priority: 3 device: "gpu1" replicas: 2 }
  }
}
"""


def test_models_are_read_with_their_versions_labels_and_sharing() -> None:
    assert read_models(TWO) == (
        ModelConfig(
            "half_plus_two", "/models/two", policy=Specific((123, 124)), labels={"stable": 123}
        ),
        ModelConfig(
            "half_plus_three",
            "/models/three",
            policy=All(),
            isolate=True,
            pin=True,
            weight=2.5,
            priority=3,
            device="gpu1",
            replicas=2,
        ),
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", Latest(1)),
        ("model_version_policy {}", Latest(1)),
        ("model_version_policy { latest {} }", Latest(1)),
        ("model_version_policy { latest { num_versions: 3 } }", Latest(3)),
    ],
)
def test_the_newest_version_is_served_unless_more_is_asked(policy: str, expected: Latest) -> None:
    (model,) = read_models(
        f'model_config_list {{ config {{ name: "m" base_path: "/m" {policy} }} }}'
    )
    assert model.policy == expected


def test_a_serialized_configuration_says_the_same_as_its_text() -> None:
    config = serving("ModelServerConfig")()
    config.model_config_list.config.add(name="m", base_path="/m")
    assert decode_models(config.SerializeToString()) == (ModelConfig("m", "/m"),)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("improperly formatted file", ["models.txt, line 1", '"improperly"', "model_config_list"]),
        ('model_config_list {\n config { nam: "x" } }', ["line 2", '"nam"', "name, base_path"]),
        ("model_config_list {\n config { name: 3 } }", ["line 2", "Expected string"]),
        ('model_config_list {\n config { name: "m" }', ["line 2", 'Expected "}"']),
        ("", ["no model_config_list", "Begin with"]),
        ("model_config_list { config {} }", ["no name"]),
        ('model_config_list { config { name: "m" } }', ["m has no base_path"]),
        (
            'model_config_list { config { name: "m" base_path: "/m" model_platform: "torch" } }',
            ["platform torch", "tensorflow"],
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m" model_type: OTHER } }',
            ["platform OTHER"],
        ),
        (
            'model_config_list { config { name: "m" base_path: "/a" } '
            'config { name: "m" base_path: "/b" } }',
            ["list model m multiple times"],
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m" '
            "model_version_policy { specific {} } } }",
            ["names none", "versions: N"],
        ),
        (
            'model_config_list { config { name: "m" base_path: "/m" sharing { weight: -1 } } }',
            ["weight -1.0"],
        ),
        ("{" * 100_000, ["line 1"]),
    ],
)
def test_a_bad_model_config_is_refused_with_line_and_remedy(text: str, parts: list[str]) -> None:
    with pytest.raises(BadRequest) as wrong:
        read_models(text, "models.txt")
    assert wrong.value.hint
    assert len(str(wrong.value)) < 700
    for part in parts:
        assert part in str(wrong.value)


def test_bytes_that_are_no_configuration_are_refused() -> None:
    with pytest.raises(BadRequest, match="no serialized ModelServerConfig"):
        decode_models(b"\xff\xff\xff")


@given(st.text())
def test_any_text_is_read_or_refused_as_a_bad_request(text: str) -> None:
    answer = []
    for read in (read_models, read_batching, read_monitoring):
        try:
            answer.append(str(read(text)))
        except BadRequest as wrong:
            answer.append(str(wrong))
    assert all(answer)


def test_batching_parameters_are_read_and_what_is_left_out_stays_open() -> None:
    text = """
    max_batch_size { value: 128 }
    batch_timeout_micros { value: 0 }
    allowed_batch_sizes: 32
    allowed_batch_sizes: 128
    pad_variable_length_inputs: true
    thread_pool_name { value: "pool" }
    """
    assert read_batching(text) == {
        "max_batch_size": 128,
        "batch_timeout_micros": 0,
        "allowed_batch_sizes": [32, 128],
        "pad_variable_length_inputs": True,
    }


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("max_batch_size: 3", 'Expected "{"'),
        ("max_batch_size { value: 0 }", "at least 1"),
        ("batch_timeout_micros { value: -1 }", "at least 0"),
        ("allowed_batch_sizes: 4 allowed_batch_sizes: 2", "increasing order"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "Make them equal"),
        (
            "max_batch_size { value: 8 } max_execution_batch_size { value: 4 } "
            "enable_large_batch_splitting { value: true } allowed_batch_sizes: 8",
            "max_execution_batch_size is 4",
        ),
        ("largest_batch { value: 8 }", "It has: max_batch_size"),
    ],
)
def test_bad_batching_parameters_are_refused(text: str, answer: str) -> None:
    with pytest.raises(BadRequest) as wrong:
        read_batching(text)
    assert answer in str(wrong.value)


def test_monitoring_is_off_unless_it_is_enabled_and_has_a_default_path() -> None:
    assert read_monitoring("") is None
    assert read_monitoring("prometheus_config { enable: true }") == METRICS_PATH
    text = 'prometheus_config: { enable: true, path: "/metrics" }'
    assert read_monitoring(text) == "/metrics"
    with pytest.raises(BadRequest, match="slash"):
        read_monitoring('prometheus_config { path: "metrics" }')


def test_requests_are_not_logged_which_is_said_in_tensorflow_servings_words() -> None:
    text = 'name: "a" base_path: "/a" logging_config { sampling_config { sampling_rate: 0.1 } }'
    with pytest.raises(BadRequest, match="No request-logger-creator provided"):
        read_models(f"model_config_list {{ config {{ {text} }} }}")


def test_a_file_that_cannot_be_parsed_is_said_in_tensorflow_servings_words() -> None:
    said = "f, line 1: Error parsing text-format tensorflow.serving.ModelServerConfig: "
    with pytest.raises(BadRequest, match=said):
        read_models("improperly formatted file", "f")
