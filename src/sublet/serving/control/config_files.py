"""TensorFlow Serving's configuration files, read into plain records.

Models, batching parameters, monitoring and TLS, written as text; models also as a serialized
message. It reads and checks what is written, and never looks whether a path or a version exists.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from msgspec import Struct, field

from sublet.errors import BadRequest
from sublet.serving.frontend.proto import pool, serving
from sublet.serving.tls import Tls

METRICS_PATH = "/monitoring/prometheus/metrics"


class Latest(Struct, frozen=True, tag=True):
    """Serve the newest versions, this many."""

    count: int = 1


class All(Struct, frozen=True, tag=True):
    """Serve every version."""


class Specific(Struct, frozen=True, tag=True):
    """Serve these versions."""

    versions: tuple[int, ...]


Policy = Latest | All | Specific


class ModelConfig(Struct, frozen=True):
    """One model that is to be served."""

    name: str
    base_path: str
    platform: str = "tensorflow"
    policy: Policy = Latest()
    labels: Mapping[str, int] = field(default_factory=dict)
    isolate: bool = False  # Give it an engine of its own.
    pin: bool = False  # Keep it in memory.
    weight: float = 1.0  # Its share of the device.
    priority: int = 0  # Of calls that name none.
    load_timeout: float = 0.0
    """Seconds after which loading it is given up; 0 for the server's."""
    device: str = ""
    """Where it is to be; empty for any device of the server."""
    replicas: int = 1  # On how many devices.


def read_models(text: str, source: str = "model config") -> tuple[ModelConfig, ...]:
    return _models(_parse("ModelServerConfig", text, source), source)


def decode_models(data: bytes, source: str = "model config") -> tuple[ModelConfig, ...]:
    config = serving("ModelServerConfig")()
    try:
        config.ParseFromString(data)
    except DecodeError as wrong:
        raise BadRequest(
            f"{source}: this is no serialized ModelServerConfig.", "Send the message itself."
        ) from wrong
    return _models(config, source)


_LEAST = {
    "max_batch_size": 1,
    "batch_timeout_micros": 0,
    "max_enqueued_batches": 1,
    "num_batch_threads": 1,
    "max_execution_batch_size": 1,
}
"""The numbers among the batching parameters, and the least that each may be."""


def read_batching(text: str, source: str = "batching parameters") -> dict[str, Any]:
    """Batching parameters as options of a model; what the file leaves open is left out."""
    given = _parse("BatchingParameters", text, source)
    options: dict[str, Any] = {
        name: getattr(given, name).value for name in _LEAST if given.HasField(name)
    }
    for name, value in options.items():
        if value < _LEAST[name]:
            raise BadRequest(
                f"{source}: {name} is {value}.", f"It must be at least {_LEAST[name]}."
            )
    name, execution = "max_batch_size", options.pop("max_execution_batch_size", None)
    if given.enable_large_batch_splitting.value and execution:
        name, options["max_batch_size"] = "max_execution_batch_size", execution
    sizes, largest = list(given.allowed_batch_sizes), options.get("max_batch_size")
    if any(a >= b for a, b in pairwise(sizes)) or any(size < 1 for size in sizes):
        raise BadRequest(
            f"{source}: allowed_batch_sizes are {sizes}.",
            "They must be above zero and in increasing order.",
        )
    if sizes and largest is not None and sizes[-1] != largest:
        raise BadRequest(
            f"{source}: the last of allowed_batch_sizes is {sizes[-1]}, but {name} is {largest}.",
            "Make them equal.",
        )
    if sizes:
        options["allowed_batch_sizes"] = sizes
    if given.pad_variable_length_inputs:
        options["pad_variable_length_inputs"] = True
    return options


def read_tls(text: str, source: str = "TLS config") -> Tls:
    given = _parse("SSLConfig", text, source)
    return Tls(**{name: getattr(given, name) for name in Tls.__struct_fields__})


def read_monitoring(text: str, source: str = "monitoring config") -> str | None:
    """Where the metrics are; None if there are to be none."""
    given = _parse("MonitoringConfig", text, source).prometheus_config
    path: str = given.path or METRICS_PATH
    if not path.startswith("/"):
        raise BadRequest(
            f"{source}: the path {path!r} does not begin with a slash.", f"Write {'/' + path!r}."
        )
    return path if given.enable else None


def _models(config: Any, source: str) -> tuple[ModelConfig, ...]:
    if config.WhichOneof("config") != "model_config_list":
        raise BadRequest(
            f"{source}: there is no model_config_list.",
            'Begin with: model_config_list { config { name: "…" base_path: "…" } }.',
        )
    models = tuple(_model(each, source) for each in config.model_config_list.config)
    for name, times in Counter(model.name for model in models).items():
        if times > 1:
            raise BadRequest(
                f"{source}: Illegal to list model {name} multiple times in config list.",
                "Give each model a name of its own.",
            )
    return models


def _model(given: Any, source: str) -> ModelConfig:
    if not given.name:
        raise BadRequest(f"{source}: a model has no name.", 'Add name: "…" to its config.')
    if not given.base_path:
        raise BadRequest(
            f"{source}: model {given.name} has no base_path.",
            "Name the directory that holds its versions.",
        )
    if given.model_type and given.model_platform:
        raise BadRequest(
            f"{source}: model {given.name} has both model_type and model_platform.",
            "Leave model_type out: it is the old name.",
        )
    other = "OTHER" if given.model_type == 2 else ""
    platform = given.model_platform or other or "tensorflow"
    if platform != "tensorflow":
        raise BadRequest(
            f"{source}: model {given.name} is of platform {platform}, which is not served here.",
            'Only model_platform: "tensorflow" is.',
        )
    if given.HasField("logging_config"):
        raise BadRequest(
            f"{source}: model {given.name} has a logging_config. No request-logger-creator "
            "provided.",
            "Leave it out: requests are not logged here, nor by tensorflow_model_server.",
        )
    sharing = given.sharing
    weight = sharing.weight or 1.0
    if not 0 < weight < float("inf"):
        raise BadRequest(
            f"{source}: model {given.name} has weight {weight}.", "Give a number above zero."
        )
    timeout = sharing.load_timeout_seconds
    if not 0 <= timeout < float("inf"):
        raise BadRequest(
            f"{source}: model {given.name} has load_timeout_seconds {timeout}.",
            "Give a number above zero.",
        )
    return ModelConfig(
        name=given.name,
        base_path=given.base_path,
        platform=platform,
        policy=_policy(given, source),
        labels=dict(given.version_labels),
        isolate=sharing.isolate,
        pin=sharing.pin,
        weight=weight,
        priority=sharing.priority,
        load_timeout=timeout,
        device=sharing.device,
        replicas=sharing.replicas or 1,
    )


def _policy(given: Any, source: str) -> Policy:
    policy = given.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return All()
        case "specific":
            if not policy.specific.versions:
                raise BadRequest(
                    f"{source}: model {given.name} asks for specific versions and names none.",
                    "Add versions: N.",
                )
            return Specific(tuple(dict.fromkeys(policy.specific.versions)))
        case _:
            # As in TensorFlow Serving, none and zero both mean the newest one.
            return Latest(max(policy.latest.num_versions, 1))


def _parse(name: str, text: str, source: str) -> Any:
    """The message that a text says, or an error that names the line and what may stand there."""
    message = serving(name)()
    try:
        return text_format.Parse(text, message, descriptor_pool=pool())
    except text_format.ParseError as wrong:
        text = re.sub(r"^\d+:\d+ : ", "", str(wrong))
        line = wrong.GetLine()
        where = source if line is None else f"{source}, line {line}"
        raise BadRequest(
            f"{where}: Error parsing text-format {message.DESCRIPTOR.full_name}: {text[:300]}",
            _hint(text),
        ) from None
    except (UnicodeError, RecursionError) as wrong:
        raise BadRequest(
            f"{source}: this is no text of a {name}.", "Write it as in TensorFlow Serving."
        ) from wrong


def _hint(text: str) -> str:
    unknown = re.search(r'Message type "([\w.]+)" has no field named', text)
    if unknown is None:
        return "Values are written as `name: value`, groups of them as `name { … }`."
    fields = pool().FindMessageTypeByName(unknown[1]).fields
    return f"It has: {', '.join(each.name for each in fields)}."
