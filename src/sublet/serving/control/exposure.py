"""What other machines can do to a server, said when it starts. Pure."""

from collections.abc import Iterator, Sequence

from sublet.serving.control.config import Settings

_NAMES = {"rest": "REST", "grpc": "gRPC"}
_FLAGS = {"rest": "--rest_api_ssl_config_file", "grpc": "--ssl_config_file"}


def warnings(settings: Settings, public: Sequence[str]) -> Iterator[str]:
    """One for each of these protocols, `rest` and `grpc`, that other machines can reach and that is
    not safe for that."""
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
