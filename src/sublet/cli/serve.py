"""`sublet serve`: models for every client of TensorFlow Serving."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from sublet import __version__
from sublet.cli.completion import complete_files
from sublet.cli.terminal_text import tell
from sublet.errors import BadRequest
from sublet.units import GiB, KiB, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from sublet.serving.access import Access
    from sublet.serving.control.config import Settings
    from sublet.serving.tls import Tls

_SMALLEST_REQUEST = KiB
_LARGEST_REQUEST = 2 * GiB
_SWITCHES = {
    "--enable_batching": "Batch with the parameters of --batching_parameters_file. Without "
    "either, requests that are there at the same time share a batch; =false runs each alone.",
    "--enable_per_model_batching_parameters": "Read batching_params.pbtxt of each version.",
    "--enable_model_warmup": "Replay a model's warm-up requests before it is served.",
    "--allow_version_labels_for_unavailable_models": "New labels may wait for their versions.",
    "--enable_profiler": "Let clients profile the models (TensorBoard; ProfilerService).",
    "--follow_links": "Serve models with links that lead out of their directories, too.",
    "--allow_reload": "Let clients name other models (HandleReloadConfigRequest, /v2/repository): "
    "those with the token of --reload_token_file, and the server's own user over Unix sockets.",
    "--allow_shared_memory": "Let programs on this machine leave tensors in shared memory, as "
    "Triton's clients do: each user in memory of its own.",
    "--prefer_tflite_model": "Serve model.tflite of a version, where there is one.",
    "--rest_api_enable_cors_support": "Let web pages of any site call the REST API.",
}
_THREADS = "TensorFlow sizes its threads by the processors"
_NOT_HERE = {
    # Switches of TensorFlow Serving that change nothing here: what happens anyway, and why.
    "--enable_grpc_healthcheck_service": ("true", "the health service is always there"),
    "--enable_serialization_as_tensor_content": ("false", "answers are written as lists of values"),
    "--enable_signature_method_name_check": ("false", "it is always checked as by default"),
    "--flush_filesystem_caches": ("true", "the system sees to it"),
    "--remove_unused_fields_from_bundle_metagraph": ("true", "the graph is not kept"),
    "--skip_initialize_tpu": ("true", "there are no TPUs"),
    "--xla_cpu_compilation_enabled": ("false", "TensorFlow decides"),
    "--xla_gpu_compilation_enabled": ("false", "TensorFlow decides"),
    "--use_alts_credentials": ("false", ""),
    # The same for flags with a value.
    "--grpc_channel_arguments": ("", "the gRPC server is another one"),
    "--grpc_max_threads": ("", "there are no threads for requests"),
    "--mixed_precision": ("", "models run as they were exported"),
    "--num_load_threads": ("0", "models are loaded one after the other"),
    "--num_request_iterations_for_warmup": ("1", "each warm-up request runs once"),
    "--num_tflite_interpreters_per_pool": ("1", "there is one interpreter for each model"),
    "--num_tflite_pools": ("", "there is one interpreter for each model"),
    "--num_unload_threads": ("0", "models are unloaded one after the other"),
    "--platform_config_file": ("", ""),
    "--rest_api_num_threads": ("", "there are no threads for requests"),
    "--tensorflow_inter_op_parallelism": ("0", _THREADS),
    "--tensorflow_intra_op_parallelism": ("0", _THREADS),
    "--tensorflow_session_config_file": ("", ""),
    "--tensorflow_session_parallelism": ("0", _THREADS),
    "--thread_pool_factory_config_file": ("", "there are no other thread pools"),
}
_REFUSED = {
    # Those of them that somebody relies on.
    "--use_alts_credentials": "Put a proxy in front of it.",
    "--platform_config_file": "Use --batching_parameters_file and --memory.",
    "--tensorflow_session_config_file": "Use --memory and --device.",
}
_BOOLEAN = {*_SWITCHES, *(name for name, (usual, _) in _NOT_HERE.items() if usual.isalpha())}
_BOOLEAN_VALUES = {"1": "true", "0": "false"}


class _Serve(click.Command):
    """Takes switches as TensorFlow Serving does, `--enable_batching` and
    `--enable_batching=true`, with dashes or underscores alike."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = []
        for place, word in enumerate(args):
            if word == "--":
                words += args[place:]
                break
            name, equals, value = word.partition("=")
            name = "--" + name[2:].replace("-", "_") if name.startswith("--") else name
            words.append(name + (equals + value or "=true" * (name in _BOOLEAN)))
        return super().parse_args(ctx, words)


def _without_effect(flags: dict[str, Any]) -> Iterator[str]:
    """What is to be said of flags that change nothing. Raises BadRequest for those that would."""
    for flag, (usual, reason) in _NOT_HERE.items():
        value = flags.pop(flag[2:])
        if value is None or value == "" or _BOOLEAN_VALUES.get(value, value) == usual:
            continue
        if flag in _REFUSED:
            raise BadRequest(f"{flag} is not supported.", _REFUSED[flag])
        if value != usual:
            yield f"{flag} has no effect: {reason}"


def _flags(options: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def apply(command: Any) -> Any:
        for decorate in reversed(options.values()):
            command = decorate(command)
        return command

    return apply


@click.command("serve", cls=_Serve)
@click.argument("path", required=False, shell_complete=complete_files)
@click.option(
    "--model_config_file", metavar="FILE", help="List of models, in TensorFlow Serving's format."
)
@click.option(
    "--model_config_file_poll_wait_seconds",
    type=float,
    default=0,
    metavar="N",
    help="Reread that file every N seconds; 0: never.",
)
@click.option(
    "--model_base_path", metavar="DIR", help="Directory of one model; it may appear later."
)
@click.option("--model_name", metavar="NAME", help="Name of that model. Default: default.")
@click.option("--port", default="8500", metavar="N", help="gRPC port; 0: none, auto: any free one.")
@click.option(
    "--rest_api_port", default="8501", metavar="N", help="REST port; 0: none, auto: any free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 admits other machines (see --auth_token_file).",
)
@click.option(
    "--grpc_socket_path", metavar="PATH", help="Also listen for gRPC on this Unix socket."
)
@click.option("--unix", metavar="PATH", help="Also listen for REST on this Unix socket.")
@click.option(
    "--rest_api_timeout_in_ms",
    type=click.IntRange(1),
    default=30000,
    metavar="N",
    help="Time limit of a REST call.",
    show_default=True,
)
@click.option(
    "--max_request",
    metavar="SIZE",
    help="Largest request. Default: 128MiB for REST, 2GiB for gRPC.",
)
@click.option(
    "--batching_parameters_file", metavar="FILE", help="Batching parameters for all models."
)
@click.option(
    "--max_num_load_retries",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    help="Retries if a model fails to load.",
    show_default=True,
)
@click.option(
    "--load_retry_interval_micros",
    type=int,
    default=60_000_000,
    metavar="N",
    help="Pause between these retries.",
)
@click.option(
    "--file_system_poll_wait_seconds",
    type=float,
    default=1,
    metavar="N",
    help="Look for new versions every N seconds; 0: only at the start.",
)
@click.option(
    "--ssl_config_file",
    metavar="FILE",
    help="TLS settings for gRPC, in TensorFlow Serving's format.",
)
@click.option(
    "--rest_api_ssl_config_file", metavar="FILE", help="TLS settings for REST, in the same format."
)
@click.option("--auth_token_file", metavar="FILE", help="File of tokens; each call must carry one.")
@click.option(
    "--reload_token_file", metavar="FILE", help="With --allow_reload: file of tokens for reloading."
)
@click.option(
    "--reload_root",
    multiple=True,
    metavar="DIR",
    help="With --allow_reload: directory that models must be in. Default: that of the first ones.",
)
@click.option(
    "--monitoring_config_file", metavar="FILE", help="Whether metrics are served, and where."
)
@click.option(
    "--load_library",
    multiple=True,
    metavar="FILE|PACKAGE",
    help="Custom operations: a library (.so), or a package such as tensorflow_text.",
)
@click.option(
    "--saved_model_tags",
    default="",
    metavar="TAGS",
    help="Tags of the graph to load. Default: serve.",
)
@click.option("--per_process_gpu_memory_fraction", type=float, default=0, metavar="F", hidden=True)
@click.option("--memory", metavar="SIZE", help="Memory for the models on each device; see above.")
@click.option(
    "--device",
    metavar="NAME,…",
    help="cpu, gpu, gpu0 or UUIDs; each gets an engine. Default: all GPUs, else the CPU.",
)
@click.option(
    "--frontends",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Number of processes that talk to clients.",
)
@click.option("--pin", multiple=True, metavar="MODEL", help="Always keep this model loaded.")
@click.option(
    "--isolate", multiple=True, metavar="MODEL[=SIZE]", help="Give this model its own engine."
)
@click.option("--idle", metavar="SPAN", help="Unload a model after this long without a call.")
@click.option(
    "--load_timeout", metavar="SPAN", help="Give up loading a model after this long. Default: 5min."
)
@click.option(
    "--watchdog",
    default="30s",
    metavar="SPAN",
    help="Replace an engine or front end that gives no sign of life for this long; 0s: never.",
)
@click.option(
    "--run_timeout",
    default="10min",
    metavar="SPAN",
    help="Interrupt a batch that takes longer than this and holds up others.",
)
@click.option(
    "--drain",
    default="30s",
    metavar="SPAN",
    help="Time for running requests when it stops.",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON when it is ready.")
@click.option("--version", is_flag=True, help="Show the version.")
@_flags(
    {
        name: click.option(name, type=bool, default=None, metavar="", help=text)
        for name, text in _SWITCHES.items()
    }
)
@_flags({name: click.option(name, default=None, hidden=True) for name in _NOT_HERE})
def command(as_json: bool, version: bool, **flags: Any) -> int:
    """Serve the models in PATH: a directory of models, or one model.

    \b
    sublet serve models/
    sublet serve --model_config_file models.config --enable_batching
    curl localhost:8501/v1/models/NAME

    Flags of TensorFlow Serving have the same names and meanings. Without --memory, all models fit
    in memory. With less, they are loaded on demand and unloaded when others need the room. With
    several devices, each model is placed on one of them.

    SIGTERM lets running requests finish; a second one stops at once.
    """
    if version:
        click.echo(f"sublet {__version__}")
        return 0
    for text in _without_effect(flags):
        tell(text)
    from sublet.cli.serving import serve
    from sublet.serving import extra

    extra.require()  # The others import what it looks for.
    return serve(settings(**flags), as_json, tell)


def settings(**flags: Any) -> "Settings":
    """What the flags say; those without effect are taken, and left alone."""
    from sublet.serving.control import config_files
    from sublet.serving.control.config import Settings, read
    from sublet.serving.control.watchdog import Patience

    given = SimpleNamespace(**flags)
    # As in TensorFlow Serving, the file counts before what names one model. Its image gives both.
    base = given.model_base_path if not given.model_config_file else None
    if given.path is not None and base:
        raise BadRequest("Both PATH and --model_base_path are given.", "Leave one out.")
    if given.path is not None and given.model_config_file:
        raise BadRequest(
            f"Both {given.path} and --model_config_file are given.", "Name all models in the file."
        )
    if not (given.path or base or given.model_config_file):
        raise BadRequest(
            "There is nothing to serve.", "Try `sublet serve models/`, or name --model_config_file."
        )
    batching: dict[str, Any] = {}
    if given.batching_parameters_file and given.enable_batching is not False:
        text = read(given.batching_parameters_file, "--batching_parameters_file")
        batching = config_files.read_batching(text, given.batching_parameters_file)
    elif given.enable_batching is False:
        batching = {"alone": True}
    metrics: str | None = config_files.METRICS_PATH
    if given.monitoring_config_file:
        text = read(given.monitoring_config_file, "--monitoring_config_file")
        metrics = config_files.read_monitoring(text, given.monitoring_config_file)
    fraction = given.per_process_gpu_memory_fraction
    return Settings(
        path=given.path,
        model_base_path=base or None,
        model_config_file=given.model_config_file or None,
        model_name=given.model_name or None,
        host=given.host,
        grpc_port=_port("--port", given.port),
        rest_port=_port("--rest_api_port", given.rest_api_port),
        grpc_socket_path=given.grpc_socket_path or None,
        rest_socket_path=given.unix,
        rest_timeout=given.rest_api_timeout_in_ms / 1000,
        max_request=None if given.max_request is None else _request(given.max_request),
        frontends=_frontends(given.frontends, bool(given.allow_shared_memory)),
        memory=f"{fraction:.2%}" if fraction and given.memory is None else given.memory,
        device=given.device,
        batching=batching,
        per_model_batching=bool(given.enable_per_model_batching_parameters),
        tags=tuple(tag for tag in given.saved_model_tags.split(",") if tag),
        warmup=given.enable_model_warmup is not False,
        idle=None if given.idle is None else parse_seconds(given.idle),
        load_timeout=None
        if given.load_timeout is None
        else _span("--load_timeout", given.load_timeout),
        follow_links=bool(given.follow_links),
        prefer_tflite=bool(given.prefer_tflite_model),
        libraries=tuple(map(_library, given.load_library)),
        pin=frozenset(given.pin),
        isolate={
            name: size or None for name, _, size in (one.partition("=") for one in given.isolate)
        },
        poll=given.file_system_poll_wait_seconds,
        config_poll=given.model_config_file_poll_wait_seconds,
        retries=given.max_num_load_retries,
        retry_wait=max(0, given.load_retry_interval_micros) / 1e6,
        labels_may_wait=bool(given.allow_version_labels_for_unavailable_models),
        metrics_path=metrics,
        cors=bool(given.rest_api_enable_cors_support),
        tls=_tls("--ssl_config_file", given.ssl_config_file),
        rest_tls=_tls("--rest_api_ssl_config_file", given.rest_api_ssl_config_file),
        access=_access(
            bool(given.allow_reload),
            bool(given.enable_profiler),
            given.auth_token_file,
            given.reload_token_file,
            given.reload_root,
            bool(given.grpc_socket_path or given.unix),
        ),
        shared_memory=bool(given.allow_shared_memory),
        reload_roots=given.reload_root,
        drain=parse_seconds(given.drain),
        patience=Patience(_patience(given.watchdog), _span("--run_timeout", given.run_timeout)),
    )


def _port(flag: str, text: str) -> int | None:
    """0 means none, as in TensorFlow Serving."""
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) > 65535:
        raise BadRequest(
            f"{flag} {text!r} is not a port number.", "Write 1 to 65535, 0 for none, or auto."
        )
    return int(text) or None


def _library(name: str) -> str:
    """A package's name as it is, or the whole path of a file."""
    if os.sep not in name and not name.endswith(".so"):
        return name
    if not os.path.isfile(name):
        raise BadRequest(f"--load_library {name}: there is no such file.", "Check the path.")
    return os.path.abspath(name)


def _tls(flag: str, path: str | None) -> "Tls | None":
    from sublet.serving import tls
    from sublet.serving.control import config, config_files

    if not path:
        return None
    secure = config_files.read_tls(config.read(path, flag), path)
    tls.check(secure, f"{flag} {path}")
    return secure


def _access(
    reload: bool,
    profile: bool,
    call_file: str | None,
    reload_file: str | None,
    roots: tuple[str, ...],
    socket: bool,
) -> "Access":
    from sublet.serving.access import Access, digests, read_tokens

    if not reload and (reload_file is not None or roots):
        flag = "--reload_root" if reload_file is None else "--reload_token_file"
        raise BadRequest(f"{flag} has no effect alone.", "Add --allow_reload, or leave it out.")
    if reload and reload_file is None and not socket:
        raise BadRequest(
            "--allow_reload alone allows it to nobody.",
            "Add --reload_token_file, or, for your own programs, --grpc_socket_path or --unix.",
        )
    for root in roots:
        if not os.path.isdir(root):
            raise BadRequest(f"--reload_root {root}: there is no such directory.", "Name another.")
    return Access(
        digests(read_tokens(call_file, "--auth_token_file")) if call_file is not None else (),
        digests(read_tokens(reload_file, "--reload_token_file")) if reload_file is not None else (),
        reload,
        profile,
    )


def _span(flag: str, text: str) -> float:
    seconds = parse_seconds(text)
    if not seconds:
        raise BadRequest(f"{flag} 0 leaves no time.", "Write a span such as 30s.")
    return seconds


def _patience(text: str) -> float:
    seconds = parse_seconds(text)
    if 0 < seconds < 1:
        raise BadRequest(
            f"--watchdog {text} is too short: a busy machine takes longer to answer.",
            "Write at least 1s, or 0s for no watchdog.",
        )
    return seconds


def _request(text: str) -> int:
    size = parse_bytes(text)
    if not _SMALLEST_REQUEST <= size <= _LARGEST_REQUEST:
        raise BadRequest(
            f"--max_request {text} is out of range.",
            "Write at least 1KiB, and no more than 2GiB: gRPC knows no larger message.",
        )
    return size


def _frontends(asked: int | None, shared_memory: bool) -> int:
    """One process speaks with clients for every four processors; the others are for models. Regions
    of shared memory are known to one process alone."""
    if shared_memory:
        if asked not in (None, 1):
            raise BadRequest(
                f"--allow_shared_memory does not go with --frontends {asked}.",
                "Leave --frontends out.",
            )
        return 1
    return asked or max(1, min(4, len(os.sched_getaffinity(0)) // 4))
