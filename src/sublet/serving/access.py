"""Who may do what at a server's ports.

    OPEN     anybody: whether the server lives, and is ready
    CALL     call models, see their states and the metrics: needs a token if there are tokens
    PROFILE  see what TensorFlow does for all callers: off unless the server allows it; then as CALL
    RELOAD   name other models: off unless the server allows it; then it needs a token of its own

The server's own user (and root), over a Unix socket, needs no token: it could do all of this
without the server. Tokens are compared by their digests and in constant time.
"""

import os
import stat
from collections.abc import Iterable
from enum import IntEnum
from hashlib import sha256
from hmac import compare_digest

from msgspec import Struct

from sublet.channel.codes import Code
from sublet.errors import BadRequest, ServingError

_SHORTEST = 16
_BEARER = b"bearer "


class Right(IntEnum):
    """What a client needs for a request, from less to more."""

    OPEN = 0
    CALL = 1
    PROFILE = 2
    RELOAD = 3


class Access(Struct, frozen=True):
    """The rules of one server. Tokens are kept as their digests."""

    callers: tuple[bytes, ...] = ()
    """Of those who may call models; everybody may if there are none."""
    reloaders: tuple[bytes, ...] = ()
    """Of those who may reload; they may call models, too."""
    reload: bool = False  # Whether clients may reload at all.
    profile: bool = False  # Whether clients may profile.

    def refusal(self, right: Right, owner: bool, authorization: bytes) -> ServingError | None:
        """The error for a request without this right; None if it has it. `owner`: it comes from
        the server's own user, over a Unix socket. `authorization` is the header of this name."""
        if right is Right.PROFILE:
            if not self.profile:
                return ServingError(
                    "This server does not let clients profile it. Start it with --enable_profiler.",
                    Code.PERMISSION_DENIED,
                )
            right = Right.CALL
        if right is Right.OPEN or (right is Right.CALL and not self.callers):
            return None
        if right is Right.RELOAD and not self.reload:
            return ServingError(
                "This server takes no configuration from clients. Start it with --allow_reload.",
                Code.PERMISSION_DENIED,
            )
        if owner or _matches(authorization, self.reloaders):
            return None
        if right is Right.CALL:
            if _matches(authorization, self.callers):
                return None
            return ServingError(
                "This server asks for a token. Send the header `authorization: Bearer TOKEN`.",
                Code.UNAUTHENTICATED,
            )
        return ServingError(
            "Only the server's own user may reload, over its Unix socket, or who has the token of "
            "--reload_token_file. Send it as `authorization: Bearer TOKEN`.",
            Code.UNAUTHENTICATED,
        )


def digests(tokens: Iterable[bytes]) -> tuple[bytes, ...]:
    """Tokens as `Access` keeps them."""
    return tuple(sha256(token).digest() for token in tokens)


def read_tokens(path: str, flag: str) -> list[bytes]:
    """The tokens in a file, one per line. Raises BadRequest if others can read it, or it has
    none."""
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            lines = file.read(1 << 16).split()
    except OSError as error:
        raise BadRequest(
            f"{flag} {path}: {error.strerror or error}.", "Check the path and its permissions."
        ) from None
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise BadRequest(f"{flag} {path} can be read by other users.", f"chmod 600 {path}")
    if facts.st_uid not in (os.geteuid(), 0):
        raise BadRequest(
            f"{flag} {path} belongs to another user, who knows and can change it.",
            "Name a file of your own.",
        )
    if not lines or min(map(len, lines)) < _SHORTEST or not all(map(_is_plain, lines)):
        raise BadRequest(
            f"{flag} {path}: a token is a line of at least {_SHORTEST} letters and digits.",
            f"Make one: python3 -c 'import secrets; print(secrets.token_urlsafe())' > {path}",
        )
    return lines


def _is_plain(token: bytes) -> bool:
    return token.isascii() and token.decode().isprintable()


def _matches(authorization: bytes, tokens: Iterable[bytes]) -> bool:
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return False
    given = sha256(authorization[len(_BEARER) :].strip()).digest()
    # All are looked at, whichever it is.
    return sum(compare_digest(given, known) for known in tokens) > 0
