"""The flags of `sublet serve`: those of TensorFlow Serving, as people write them."""

import re
from pathlib import Path
from typing import Any

import pytest

from sublet.cli.serve import command
from sublet.cli.serve import settings as read
from sublet.errors import BadRequest
from sublet.serving.control.config import Settings, models


def settings(*words: str) -> Settings:
    return read(**command.make_context("serve", list(words)).params)


def test_without_flags_it_serves_on_the_ports_of_tensorflow_serving_to_this_machine() -> None:
    chosen = settings("models/")
    assert (chosen.host, chosen.grpc_port, chosen.rest_port) == ("127.0.0.1", 8500, 8501)
    assert chosen.metrics_path == "/monitoring/prometheus/metrics"
    assert chosen.warmup
    assert (chosen.poll, chosen.retries, chosen.retry_wait) == (1.0, 5, 60.0)


@pytest.mark.parametrize(
    ("word", "chosen"),
    [
        ("--enable_model_warmup", True),
        ("--enable_model_warmup=true", True),
        ("--enable_model_warmup=false", False),
        ("--enable-model-warmup=0", False),
    ],
)
def test_switches_are_written_with_and_without_a_value(word: str, chosen: bool) -> None:
    assert settings(word, "models/").warmup is chosen
    assert settings(word, "models/").path == "models/"


@pytest.mark.parametrize("word", ["--rest_api_port", "--rest-api-port"])
def test_dashes_and_underscores_are_alike(word: str) -> None:
    assert settings(word, "9000", "m").rest_port == 9000
    assert settings(f"{word}=0", "m").rest_port is None
    assert settings(f"{word}=auto", "m").rest_port == 0


def test_one_model_is_named_as_in_tensorflow_serving() -> None:
    chosen = settings("--model_name=half", "--model_base_path=/models/half")
    assert (chosen.model_name, chosen.model_base_path) == ("half", "/models/half")
    (model,) = models(settings("--model_base_path=/models/gone"))
    assert (model.name, model.base_path) == ("default", "/models/gone")


def test_the_config_file_counts_before_the_model_that_the_image_of_tensorflow_serving_names() -> (
    None
):
    chosen = settings("--model_name=m", "--model_base_path=/models/m", "--model_config_file=f")
    assert (chosen.model_base_path, chosen.model_config_file) == (None, "f")


def test_batching_is_on_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert settings("m").batching == {}
    assert settings("m", "--enable_batching=false").batching == {"alone": True}
    file = tmp_path / "batching.config"
    file.write_text("max_batch_size { value: 128 } batch_timeout_micros { value: 0 }")
    chosen = settings("m", "--enable_batching", f"--batching_parameters_file={file}")
    assert chosen.batching == {"max_batch_size": 128, "batch_timeout_micros": 0}


def test_metrics_are_where_the_monitoring_file_says(tmp_path: Path) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text('prometheus_config { enable: true path: "/metrics" }')
    assert settings("m", f"--monitoring_config_file={file}").metrics_path == "/metrics"
    file.write_text("prometheus_config { enable: false }")
    assert settings("m", f"--monitoring_config_file={file}").metrics_path is None


def test_models_get_engines_of_their_own_with_or_without_a_size() -> None:
    chosen = settings("m", "--isolate", "a", "--isolate", "b=1GiB", "--pin", "c", "--idle", "10min")
    assert chosen.isolate == {"a": None, "b": "1GiB"}
    assert (chosen.pin, chosen.idle) == (frozenset("c"), 600.0)


def test_a_fraction_of_the_gpu_is_a_share_of_the_device() -> None:
    assert settings("m", "--per_process_gpu_memory_fraction=0.25").memory == "25.00%"


def test_the_largest_request_is_named_once_for_both_protocols() -> None:
    assert settings("m").max_request is None
    assert settings("m", "--max-request", "64MiB").max_request == 64 << 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ssl_config_file=gone", "m"], "gone: No such file"),
        (["m", "--port=99999"], "'99999' is not a port number"),
        (["m", "--port=-1"], "'-1' is not a port number"),
        (["m", "--model_base_path=n"], "Both PATH and --model_base_path"),
        (["m", "--model_config_file=n"], "Both m and --model_config_file"),
        (["m", "--batching_parameters_file=gone"], "gone: No such file"),
        (["m", "--max_request=3GiB"], "--max_request 3GiB is out of range"),
        (["m", "--max_request=1B"], "--max_request 1B is out of range"),
        (["m", "--max_request=64"], "has no unit"),
        ([], "There is nothing to serve"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        settings(*words)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> Settings:
    """What the command would serve."""
    seen: list[Any] = []
    monkeypatch.setattr("sublet.cli.serving.serve", lambda *given: seen.extend(given))
    command.main([*words, "m"], standalone_mode=False)
    found: Settings = seen[0]
    assert found.path == "m"
    return found


BOOLEANS = [
    "allow_version_labels_for_unavailable_models", "enable_batching",
    "enable_grpc_healthcheck_service", "enable_model_warmup",
    "enable_per_model_batching_parameters", "enable_profiler",
    "enable_serialization_as_tensor_content", "enable_signature_method_name_check",
    "flush_filesystem_caches", "prefer_tflite_model",
    "remove_unused_fields_from_bundle_metagraph", "rest_api_enable_cors_support",
    "skip_initialize_tpu", "use_alts_credentials", "version", "xla_cpu_compilation_enabled",
    "xla_gpu_compilation_enabled",
]  # fmt: skip
VALUES = [
    "batching_parameters_file", "file_system_poll_wait_seconds=1", "grpc_channel_arguments",
    "grpc_max_threads=8", "grpc_socket_path", "load_retry_interval_micros=1",
    "max_num_load_retries=5", "mixed_precision", "model_base_path", "model_config_file",
    "model_config_file_poll_wait_seconds=0", "model_name", "monitoring_config_file",
    "num_load_threads=0", "num_request_iterations_for_warmup=1",
    "num_tflite_interpreters_per_pool=1", "num_tflite_pools=4", "num_unload_threads=0",
    "per_process_gpu_memory_fraction=0", "platform_config_file", "port=8500",
    "rest_api_num_threads=8", "rest_api_port=0", "rest_api_timeout_in_ms=30000",
    "saved_model_tags", "ssl_config_file", "tensorflow_inter_op_parallelism=0",
    "tensorflow_intra_op_parallelism=0", "tensorflow_session_config_file",
    "tensorflow_session_parallelism=0", "thread_pool_factory_config_file",
]  # fmt: skip


def test_all_flags_of_tensorflow_serving_are_taken_as_it_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(BOOLEANS) + len(VALUES) == 48
    refused = {"use_alts_credentials", "version"}
    bare = [f"--{name}" for name in BOOLEANS if name not in refused]
    given = [f"--{one}" if "=" in one else f"--{one}=" for one in VALUES]
    # None of them takes what follows for its value.
    chosen = run(monkeypatch, *bare, *given, "--port=9000")
    assert chosen.grpc_port == 9000
    assert chosen == run(monkeypatch, *(f"{one}=1" for one in bare), *given, "--port=9000")
    run(monkeypatch, *(f"--{name}=false" for name in BOOLEANS if name != "version"))


@pytest.mark.parametrize("word", ["--platform_config_file=x", "--use_alts_credentials"])
def test_what_somebody_relies_on_and_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    with pytest.raises(BadRequest, match="is not supported"):
        run(monkeypatch, word)


def test_flags_without_effect_are_taken_and_said_unless_they_ask_for_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        monkeypatch,
        "--grpc_max_threads=8",
        "--flush_filesystem_caches=false",
        "--num_load_threads=0",
    )
    said = capsys.readouterr().err
    assert "--grpc_max_threads has no effect" in said
    assert "--flush_filesystem_caches has no effect" in said
    assert "--num_load_threads" not in said


def test_loading_has_a_time_limit_of_its_own() -> None:
    assert settings("m").load_timeout is None
    assert settings("m", "--load_timeout", "2min").load_timeout == 120.0
    with pytest.raises(BadRequest, match="--load_timeout 0 leaves no time"):
        settings("m", "--load-timeout=0s")


def test_links_are_followed_only_if_it_is_said() -> None:
    assert not settings("m").follow_links
    assert settings("m", "--follow_links").follow_links
    assert not settings("m", "--follow-links=false").follow_links


def secret(path: Path, text: str = "0123456789abcdef") -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_clients_may_not_reload_unless_it_is_said_who_may(tmp_path: Path) -> None:
    assert not settings("m").access.reload
    token = secret(tmp_path / "token")
    chosen = settings("m", "--allow_reload", "--reload_token_file", token)
    assert chosen.access.reload
    assert len(chosen.access.reloaders) == 1
    chosen = settings("m", "--allow_reload", "--grpc_socket_path", "x.sock")
    assert (chosen.access.reload, chosen.access.reloaders) == (True, ())
    with pytest.raises(BadRequest, match="allows it to nobody") as wrong:
        settings("m", "--allow_reload")
    assert "--reload_token_file" in wrong.value.hint
    for words in (("--reload_token_file", token), ("--reload_root", str(tmp_path))):
        with pytest.raises(BadRequest, match=f"{words[0]} has no effect alone"):
            settings("m", *words)


def test_roots_for_reloading_are_directories(tmp_path: Path) -> None:
    words = ("m", "--allow_reload", "--grpc_socket_path", "x.sock", "--reload_root")
    assert settings(*words, str(tmp_path)).reload_roots == (str(tmp_path),)
    with pytest.raises(BadRequest, match="there is no such directory"):
        settings(*words, str(tmp_path / "none"))


def test_a_token_is_asked_of_callers_and_its_file_must_be_a_secret(tmp_path: Path) -> None:
    assert not settings("m").access.callers
    path = secret(tmp_path / "token")
    assert len(settings("m", "--auth_token_file", path).access.callers) == 1
    Path(path).chmod(0o644)
    with pytest.raises(BadRequest, match="can be read by other users"):
        settings("m", "--auth_token_file", path)


def test_the_watchdog_can_be_set_and_switched_off_and_is_not_too_short() -> None:
    assert settings("m").patience == (30.0, 600.0)
    chosen = settings("m", "--watchdog", "5s", "--run_timeout", "1min")
    assert chosen.patience == (5.0, 60.0)
    assert settings("m", "--watchdog", "0s").patience.process == 0
    for words in (("--watchdog", "10ms"), ("--run_timeout", "0s")):
        with pytest.raises(BadRequest, match=words[0]):
            settings("m", *words)


def test_the_page_on_serving_names_every_flag() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`--([a-z_]+)", page))
    theirs = {one.partition("=")[0] for one in (*BOOLEANS, *VALUES)}
    options = {max(one.opts, key=len)[2:] for one in command.params if one.opts[0].startswith("-")}
    assert theirs <= options
    assert options - named == {"help"} & options
