"""Who may call, who may reload, and which files hold tokens."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.errors import BadRequest
from sublet.serving.access import Access, Right, digests, read_tokens
from sublet.serving.control.config import Settings, exposure_warnings
from sublet.serving.tls import Tls
from support.strangers import UID, needs_root

CALLER, ADMIN = b"caller-0123456789", b"admin-0123456789"


def digest(token: bytes) -> tuple[bytes, ...]:
    return (sha256(token).digest(),)


def code(access: Access, right: Right, owner: bool = False, token: bytes = b"") -> int:
    """0 if it is allowed."""
    header = b"Bearer " + token if token else b""
    refused = access.refusal(right, owner, header)
    return 0 if refused is None else refused.code


def test_everybody_may_call_models_and_nothing_else_if_nothing_was_said() -> None:
    access = Access()
    for owner in (False, True):
        assert code(access, Right.OPEN, owner) == code(access, Right.CALL, owner) == 0
        assert code(access, Right.RELOAD, owner) == Code.PERMISSION_DENIED
    assert code(access, Right.RELOAD, token=ADMIN) == Code.PERMISSION_DENIED


def test_a_token_is_asked_of_callers_if_there_is_one() -> None:
    access = Access(callers=digest(CALLER), reloaders=digest(ADMIN), reload=True)
    assert code(access, Right.OPEN) == 0
    assert code(access, Right.CALL) == Code.UNAUTHENTICATED
    assert code(access, Right.CALL, token=CALLER[:-1]) == Code.UNAUTHENTICATED
    assert code(access, Right.CALL, token=CALLER) == 0
    assert code(access, Right.CALL, token=ADMIN) == 0
    assert code(access, Right.CALL, owner=True) == 0


def test_who_may_call_may_not_reload() -> None:
    access = Access(callers=digest(CALLER), reloaders=digest(ADMIN), reload=True)
    assert code(access, Right.RELOAD) == Code.UNAUTHENTICATED
    assert code(access, Right.RELOAD, token=CALLER) == Code.UNAUTHENTICATED
    assert code(access, Right.RELOAD, token=ADMIN) == 0
    assert code(access, Right.RELOAD, owner=True) == 0


@pytest.mark.parametrize("header", [b"", b"Bearer", b"Basic " + CALLER, CALLER, b"Bearer \xff\0"])
def test_what_is_no_token_is_none(header: bytes) -> None:
    access = Access(callers=digest(CALLER))
    assert access.refusal(Right.CALL, False, header) is not None


def test_the_scheme_is_written_in_any_case() -> None:
    assert Access(callers=digest(CALLER)).refusal(Right.CALL, False, b"bearer  " + CALLER) is None


def secret(path: Path, text: bytes, mode: int = 0o600) -> str:
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


def test_a_file_has_a_token_in_each_line(tmp_path: Path) -> None:
    path = secret(tmp_path / "tokens", CALLER + b"\n" + ADMIN + b"\n")
    assert digests(read_tokens(path, "--f")) == digest(CALLER) + digest(ADMIN)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"short", CALLER + b"\nshort", "ein-geheimes-Wörtchen".encode()]
)
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(BadRequest, match="at least 16 letters") as wrong:
        read_tokens(secret(tmp_path / "tokens", text), "--auth_token_file")
    assert "secrets.token_urlsafe" in wrong.value.hint


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o604])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path / "tokens", CALLER, mode)
    with pytest.raises(BadRequest, match="can be read by other users") as wrong:
        read_tokens(path, "--auth_token_file")
    assert wrong.value.hint == f"chmod 600 {path}"


@needs_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = secret(tmp_path / "tokens", CALLER)
    os.chown(path, UID, -1)
    with pytest.raises(BadRequest, match="belongs to another user"):
        read_tokens(path, "--auth_token_file")


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(BadRequest, match="--auth_token_file /nowhere: No such file"):
        read_tokens("/nowhere", "--auth_token_file")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(), "everybody who can reach this address can call"),
        (Settings(tls=Tls("k", "c")), "everybody who can reach this address can call"),
        (Settings(tls=Tls("k", "c", client_verify=True)), ""),
        (Settings(access=Access(callers=digest(CALLER))), "tokens and tensors can be read"),
        (Settings(access=Access(callers=digest(CALLER)), tls=Tls("k", "c")), ""),
    ],
)
def test_an_address_that_others_reach_is_warned_of_unless_it_is_safe(
    settings: Settings, said: str
) -> None:
    answer = list(exposure_warnings(settings, ["grpc"]))
    assert len(answer) == bool(said)
    assert said in "".join(answer)
    assert not list(exposure_warnings(settings, []))
    # Each port has its own certificates.
    assert len(list(exposure_warnings(settings, ["rest"]))) == 1
