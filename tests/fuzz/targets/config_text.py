"""TensorFlow Serving's configuration files, as text and as a serialized message."""

from fuzz.driver import Target
from sublet.errors import BadRequest
from sublet.serving.control import config_files
from sublet.serving.frontend.proto import serving

_TEXTS = (
    b'model_config_list { config { name: "a" base_path: "/m/a" model_platform: "tensorflow" '
    b"model_version_policy { specific { versions: 1 versions: 2 } } "
    b'version_labels { key: "stable" value: 1 } '
    b'sharing { weight: 2 replicas: 1 device: "gpu1" } } }',
    b"max_batch_size { value: 128 } batch_timeout_micros { value: 0 } allowed_batch_sizes: 128",
    b'prometheus_config { enable: true, path: "/metrics" }',
    b'server_key: "k" server_cert: "c" custom_ca: "a" client_verify: true',
    b"a: [1, 2] # comment\nb < c: 'x\\n' >",
)


def target() -> Target:
    made = serving("ModelServerConfig")()
    made.model_config_list.config.add(name="a", base_path="/m/a").version_labels["x"] = 3
    return Target(feed, (*_TEXTS, made.SerializeToString()))


def feed(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (
        config_files.read_models,
        config_files.read_batching,
        config_files.read_monitoring,
        config_files.read_tls,
    ):
        _try(read, text)
    _try(config_files.decode_models, data)


def _try(read: object, given: object) -> None:
    assert callable(read)
    try:
        read(given)
    except BadRequest as wrong:
        if not (wrong.message and wrong.hint):
            raise
