"""What a server is to serve, and how: the settings, and the models that they name at a moment.

Reads files and directories when it is asked to. It never starts, loads or decides anything.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sublet.channel.codes import Code
from sublet.errors import BadRequest, ServingError
from sublet.serving.access import Access
from sublet.serving.control import model_directories
from sublet.serving.control.config_files import (
    METRICS_PATH,
    ModelConfig,
    decode_models,
    read_batching,
    read_models,
)
from sublet.serving.control.watchdog import Patience
from sublet.serving.tls import Tls

PER_MODEL = "batching_params.pbtxt"
"""In the directory of a version, as in TensorFlow Serving."""


class Settings(Struct, frozen=True):
    """The options of `sublet serve`, by the names of its flags."""

    path: str | None = None  # A directory of models, or one model.
    model_base_path: str | None = None  # One model, which may not be there yet.
    model_config_file: str | None = None
    model_name: str | None = None
    host: str = "127.0.0.1"
    grpc_port: int | None = 8500  # 0 for any free one; None for none.
    rest_port: int | None = 8501
    grpc_socket_path: str | None = None
    rest_socket_path: str | None = None
    rest_timeout: float = 30.0
    max_request: int | None = None
    """Bytes of a request's body or message; None for what each protocol has by default."""
    frontends: int = 1
    memory: str | None = None
    device: str | None = None
    batching: Mapping[str, Any] = field(default_factory=dict)
    """Options of every model that has none of its own."""
    per_model_batching: bool = False
    tags: tuple[str, ...] = ()
    warmup: bool = True
    idle: float | None = None
    load_timeout: float | None = None
    """Seconds for the load of a model that names no limit; None for the engine's default."""
    follow_links: bool = False
    prefer_tflite: bool = False
    libraries: tuple[str, ...] = ()
    """Libraries of operations, by their whole paths, and packages that bring some."""
    pin: frozenset[str] = frozenset()
    isolate: Mapping[str, str | None] = field(default_factory=dict)
    """Models with engines of their own, and how much memory each has; None for enough."""
    poll: float = 1.0
    """Seconds between two looks at the disk; 0 for one look, less for none."""
    config_poll: float = 0.0
    retries: int = 5
    retry_wait: float = 60.0
    labels_may_wait: bool = False
    metrics_path: str | None = METRICS_PATH
    cors: bool = False
    """Whether pages of any site may call the REST API."""
    tls: Tls | None = None  # Of the gRPC port.
    rest_tls: Tls | None = None  # Of the REST port.
    access: Access = Access()
    shared_memory: bool = False  # Whether clients may name regions of it.
    reload_roots: tuple[str, ...] = ()
    """Where clients may have models loaded from; none for beside those of the beginning."""
    drain: float = 30.0
    patience: Patience = Patience()


def models(settings: Settings) -> tuple[ModelConfig, ...]:
    """The models that the settings name now. Raises BadRequest, which says what to do."""
    if settings.model_config_file is not None:
        source = settings.model_config_file
        found = read_models(read(source, "--model_config_file"), source)
        return _complete(settings, found, os.path.dirname(os.path.abspath(source)))
    if settings.model_base_path is not None:
        one = ModelConfig(settings.model_name or "default", settings.model_base_path)
        return _complete(settings, (one,), os.getcwd())
    assert settings.path is not None
    return marked(settings, _in_directory(settings.path, settings.model_name))


def decoded(settings: Settings, data: bytes, roots: Sequence[str]) -> tuple[ModelConfig, ...]:
    """The models of a ModelServerConfig that a client sends. Raises BadRequest unless all are
    below one of these directories; nothing is said of what lies elsewhere, not even whether it
    exists."""
    found = decode_models(data)
    for config in found:
        path = config.base_path.removeprefix("file://")
        if os.path.isabs(path) and not model_directories.is_below(path, roots):
            raise BadRequest(
                f"Model {config.name} has the base_path {config.base_path}, which is not below a "
                "directory from which this server takes models that clients name.",
                "Start the server with --reload_root and such a directory.",
            )
    found = _complete(settings, found, None)
    for config in found:
        # At the start it may come later; a client has to hear what it got wrong.
        if not os.path.exists(config.base_path):
            raise BadRequest(
                f"Could not find base path {config.base_path} for servable {config.name}.",
                "Check the path and its permissions.",
            )
    return found


def named(settings: Settings, name: str, roots: Sequence[str]) -> ModelConfig:
    """The model that a client knows by its name alone: the directory of this name in one of these.
    Raises ServingError if there is none."""
    for root in roots if name and not {os.sep, "\0"} & set(name) else ():
        path = os.path.join(root, name)
        # Not a link to elsewhere, nor the parent.
        if os.path.exists(path) and model_directories.is_below(path, [path]):
            return marked(settings, (ModelConfig(name, path),))[0]
    raise ServingError(
        f"There is no model {name} where this server takes models from clients.", Code.NOT_FOUND
    )


def reload_roots(settings: Settings, found: Sequence[ModelConfig]) -> tuple[str, ...]:
    """The directories from which clients may load models: those that were named, or else those
    in which the first models lie."""
    named = settings.reload_roots or {os.path.dirname(config.base_path) for config in found}
    roots = {os.path.realpath(path) for path in named}
    # All of the disk is a root for who says so, and not for who serves /model.
    return tuple(sorted(roots if settings.reload_roots else roots - {"/"}))


def _complete(
    settings: Settings, found: tuple[ModelConfig, ...], root: str | None
) -> tuple[ModelConfig, ...]:
    """With whole paths. Relative ones begin at `root`; None refuses them."""
    whole = []
    for config in found:
        path = config.base_path.removeprefix("file://")
        if not os.path.isabs(path):
            if root is None:
                raise BadRequest(
                    f"Expected model {config.name} to have an absolute path or URI; "
                    f"got base_path()={config.base_path}",
                    "Write the whole path.",
                )
            path = os.path.join(root, path)
        whole.append(replace(config, base_path=path))
    return marked(settings, tuple(whole))


def marked(settings: Settings, found: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
    """The models, with what the command line says about single ones."""
    return tuple(
        replace(
            config,
            isolate=config.isolate or config.name in settings.isolate,
            pin=config.pin or config.name in settings.pin,
        )
        for config in found
    )


def strangers(settings: Settings, found: Sequence[ModelConfig]) -> list[tuple[str, str]]:
    """Flags about models that are not there: they may come, or be misspelt."""
    known = {config.name for config in found}
    given = (("--pin", settings.pin), ("--isolate", settings.isolate))
    return [(flag, name) for flag, names in given for name in sorted(set(names) - known)]


def options(settings: Settings, config: ModelConfig, path: str) -> dict[str, Any]:
    """The options of one version for its engine. Raises ServingError if it may not be served."""
    if not settings.follow_links:
        model_directories.check_link(config.base_path, path)
    options = dict(settings.batching)
    if settings.per_model_batching:
        own = os.path.join(path, PER_MODEL)
        if os.path.isfile(own):
            options = read_batching(read(own, PER_MODEL), own)
    options.pop("num_batch_threads", None)  # They are the engine's, not a model's.
    options |= {"weight": config.weight, "priority": config.priority, "pin": config.pin}
    options["warm_up"] = settings.warmup
    if settings.idle is not None:
        options["idle_seconds"] = settings.idle
    if settings.tags:
        options["tags"] = list(settings.tags)
    if timeout := config.load_timeout or settings.load_timeout:
        options["load_timeout"] = timeout
    if settings.follow_links:
        options["follow_links"] = True
    if settings.libraries:
        options["libraries"] = list(settings.libraries)
    if settings.prefer_tflite:
        options["prefer_tflite"] = True
    return options


def read(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(
            f"{flag} {path}: {error.strerror or error}.", "Check the path and its permissions."
        ) from None
    except UnicodeDecodeError:
        raise BadRequest(f"{flag} {path} is no text.", "Name a text file.") from None


def _in_directory(path: str, name: str | None) -> tuple[ModelConfig, ...]:
    whole = os.path.abspath(path)
    place = Path(whole)
    if not place.exists():
        raise BadRequest(f"{path}: there is no such file or directory.", "Check the spelling.")
    if model_directories.is_model(place) or model_directories.has_versions(place):
        return (ModelConfig(name or model_directories.name_of(place), whole),)
    found = model_directories.survey(whole)
    if not found:
        raise BadRequest(
            f"{path}: there is no model in it.",
            "A model is a SavedModel, a .keras file, or a directory with one directory for each\n"
            "version, named 1, 2, …",
        )
    if name is not None:
        raise BadRequest(
            f"--model_name {name}, but {path} has several models.", "Name one of them as the path."
        )
    return tuple(ModelConfig(model, base) for model, base in found.items())


_NAMES = {"rest": "REST", "grpc": "gRPC"}
_FLAGS = {"rest": "--rest_api_ssl_config_file", "grpc": "--ssl_config_file"}


def exposure_warnings(settings: Settings, public: Sequence[str]) -> Iterator[str]:
    """A warning for each of these protocols that other machines can reach and that is not safe."""
    for protocol in public:
        name, flag = _NAMES[protocol], _FLAGS[protocol]
        secure = settings.rest_tls if protocol == "rest" else settings.tls
        token = bool(settings.access.callers)
        if not token and not (secure is not None and secure.client_verify):
            yield (
                f"{name} on {settings.host}: everybody who can reach this address can call the "
                f"models. Ask for a token (--auth_token_file) or for certificates ({flag})."
            )
        elif token and secure is None:
            yield (
                f"{name} on {settings.host}: tokens and tensors can be read on the way. "
                f"Use TLS: {flag}."
            )
