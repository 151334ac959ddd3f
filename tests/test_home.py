"""The state directory is its user's alone: what others have made or can write to is refused."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sublet.broker.ledger import Ledger
from sublet.client.connection import connect
from sublet.errors import WorldError
from sublet.home import Home
from support.jobs import job
from support.sandbox import Sandbox
from support.strangers import GID, UID, needs_root

NewSandbox = Callable[..., Sandbox]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    home = Home(tmp_path / "state" / "sublet")
    before = os.umask(0)
    try:
        home.make()
        Ledger.open(home.ledger).close()
    finally:
        os.umask(before)
    assert [mode(path) for path in (home.path, home.runs, home.logs)] == [0o700] * 3
    assert mode(home.ledger) == 0o600


@pytest.mark.parametrize("shared", [0o1777, 0o777, 0o770, 0o775])
def test_a_directory_that_others_can_write_to_is_refused_and_stays_as_it_is(
    tmp_path: Path, shared: int
) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir()
    home.path.chmod(shared)
    with pytest.raises(WorldError, match="Other users can write to") as wrong:
        home.make()
    assert "SUBLET_HOME" in wrong.value.hint
    assert f"chmod 700 {home.path}" in wrong.value.hint
    assert mode(home.path) == shared
    assert list(home.path.iterdir()) == []


def test_a_directory_that_others_can_only_read_is_used_and_stays_as_it_is(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox()
    sandbox.home.mkdir(exist_ok=True)
    sandbox.home.chmod(0o755)
    sandbox.sublet("status", check=True, umask=0)
    assert mode(sandbox.home) == 0o755
    readable = [path for path in sandbox.home.iterdir() if mode(path) & 0o077]
    assert readable == []


@needs_root
@pytest.mark.parametrize("planted", ["ledger.sqlite", "broker.lock", "broker.log", "runs", "logs"])
def test_what_another_user_has_made_in_a_home_is_refused(tmp_path: Path, planted: str) -> None:
    home = Home(tmp_path / "home")
    home.make()
    path = home.path / planted
    if not path.exists():
        path.touch()
    os.chown(path, UID, GID)
    with pytest.raises(WorldError, match=f"{planted} belongs to another user"):
        home.make()


@needs_root
def test_another_users_link_to_a_directory_of_ours_is_no_home(tmp_path: Path) -> None:
    ours, link = tmp_path / "ours", tmp_path / "home"
    ours.mkdir(mode=0o700)
    link.symlink_to(ours)
    Home(link).make()
    os.chown(link, UID, GID, follow_symlinks=False)
    with pytest.raises(WorldError, match="belongs to another user"):
        Home(link).make()


@needs_root
def test_jobs_of_another_users_ledger_do_not_run(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox()
    home = Home(sandbox.home)
    home.path.mkdir(exist_ok=True)
    ledger = Ledger.open(home.ledger)
    ledger.save(job(1))
    ledger.commit()
    ledger.close()
    os.chown(home.ledger, UID, GID)
    before = home.ledger.read_bytes()
    for shared, said in ((0o777, "can write to"), (0o700, "belongs to another user")):
        home.path.chmod(shared)
        answer = sandbox.sublet("ps")
        assert answer.returncode
        assert said in answer.stderr
    assert home.ledger.read_bytes() == before


@needs_root
def test_a_client_tells_nothing_to_a_socket_of_another_user() -> None:
    with TemporaryDirectory(prefix="sublet-stranger-") as folder:
        Path(folder).chmod(0o777)
        home = Home(folder)
        begun, going = os.pipe()
        child = os.fork()
        if not child:
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.bind(home.socket)
                sock.listen()
                os.close(going)
                sock.accept()
            os._exit(0)
        os.close(going)
        os.read(begun, 1)  # Until it listens.
        os.close(begun)
        with pytest.raises(WorldError, match="of another user"):
            connect(home)
        os.waitpid(child, 0)
