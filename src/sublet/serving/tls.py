"""TLS: the server's key and certificate, and which clients it takes."""

import ssl
import tempfile

from msgspec import Struct

from sublet.errors import BadRequest

GRPC, REST = "h2", "http/1.1"
"""What a client and a server call the protocols, in ALPN."""


class Tls(Struct, frozen=True):
    """As in TensorFlow Serving's --ssl_config_file; keys and certificates are PEM text."""

    server_key: str
    server_cert: str
    custom_ca: str = ""
    """Whose certificates clients show; the system's authorities if it is empty."""
    client_verify: bool = False  # Whether clients must show one.


def context(tls: Tls, protocol: str = GRPC) -> ssl.SSLContext:
    """The context of a listening socket. Raises ssl.SSLError for what is no pair of key and
    certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols([protocol])
    # OpenSSL reads them from a file only; nobody else can open this one.
    with tempfile.NamedTemporaryFile() as file:
        file.write(f"{tls.server_key}\n{tls.server_cert}\n".encode())
        file.flush()
        # A key that needs a password must not ask for it at a terminal.
        made.load_cert_chain(file.name, password=b"")
    if tls.custom_ca:
        made.load_verify_locations(cadata=tls.custom_ca)
    elif tls.client_verify:
        made.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if tls.client_verify:
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def check(tls: Tls, source: str) -> None:
    """Refuse what nobody could connect to."""
    try:
        context(tls)
    except (ssl.SSLError, ValueError) as wrong:
        raise BadRequest(
            f"{source}: the key and the certificates cannot be used ({wrong}).",
            "server_key and server_cert are a pair in PEM form, as text, without a password.",
        ) from None
