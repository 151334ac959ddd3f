"""Bad input and a bad world: a clear answer that says what to do, and nothing is changed."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sandbox import PATIENCE, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "Nothing to run."),
        (["run", "none.py"], "none.py: there is no such file."),
        (["run", "no-such-command"], "no-such-command: there is no such file or command."),
        (["run", "picture.png"], "picture.png is not a Python program."),
        (["run", "."], "is a directory without a __main__.py."),
        (["run", "--memory", "0", "ok.py"], "must be more than 0"),
        (["run", "--memory", "-1GiB", "ok.py"], "negative"),
        (["run", "--memory", "2 bananas", "ok.py"], "bananas"),
        (["run", "--memory", "nan", "ok.py"], "memory 'nan'"),
        (["run", "--memory", "150%", "ok.py"], "above 0% and at most 100%"),
        (["run", "--memory", "1KiB", "ok.py"], "too little"),
        (["run", "--memory", "64GiB", "ok.py"], "it has 4.0 GiB"),
        (["run", "--memory", "100%", "ok.py"], "will never fit on cpu"),
        (["run", "--device", "gpu7", "ok.py"], "There is no device 'gpu7'"),
        (["run", "--python", "/no/python", "ok.py"], "there is no such interpreter"),
        (["run", "--on-oom", "panic", "ok.py"], "panic"),
        (["fly"], "fly"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_at_once(
    sandbox: Sandbox, words: list[str], says: str
) -> None:
    """With exit code 2, what is wrong, and no job."""
    sandbox.write("ok.py", "print('ran')")
    (sandbox.work / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    answer = sandbox.sublet(*words)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


def test_a_script_that_cannot_be_read_is_refused(sandbox: Sandbox) -> None:
    """Run as somebody who may not read it."""
    if os.getuid() != 0:
        sandbox.write("secret.py", "").chmod(0)
        answer = sandbox.sublet("run", "secret.py")
        assert "cannot be read: Permission denied" in answer.stderr
        return
    from sublet.client.program import read_command
    from sublet.errors import BadRequest

    path = sandbox.write("secret.py", "")
    path.chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(BadRequest, match=r"no such file|Permission denied"):
            read_command([str(path)])
    finally:
        os.seteuid(0)


def test_a_stale_socket_is_replaced(new_sandbox: NewSandbox) -> None:
    """Left by a broker that was killed."""
    sandbox = new_sandbox()
    sandbox.home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(sandbox.home / "broker.sock"))
    assert sandbox.status()["pid"]
    assert (sandbox.home / "broker.sock").stat().st_mode & 0o777 == 0o600
    assert sandbox.home.stat().st_mode & 0o777 == 0o700


def test_a_second_broker_is_refused_with_the_pid_of_the_first(new_sandbox: NewSandbox) -> None:
    """The first broker does not notice."""
    sandbox = new_sandbox()
    pid = sandbox.status()["pid"]
    second = sandbox.python("-m", "sublet.broker")
    assert second.returncode == 1
    assert f"process {pid}" in second.stderr
    assert sandbox.status()["pid"] == pid


def _brokers(sandbox: Sandbox) -> list[str]:
    return [words for words in sandbox.processes().values() if "sublet.broker" in words]


def test_many_first_commands_at_once_start_one_broker(new_sandbox: NewSandbox) -> None:
    """All get their answer from the same one."""
    sandbox = new_sandbox()
    clients = [sandbox.start("status", "--json") for _ in range(6)]
    outputs = [client.communicate(timeout=PATIENCE) for client in clients]
    assert [client.returncode for client in clients] == [0] * 6, outputs
    # Those that came too late may still be on their way out.
    wait_for(lambda: len(_brokers(sandbox)) == 1, "one broker is left")


def test_a_state_directory_that_cannot_be_written_is_said(new_sandbox: NewSandbox) -> None:
    """A file in its place is the one obstacle that stops root, too."""
    sandbox = new_sandbox()
    blocked = sandbox.work / "file"
    blocked.write_text("")
    sandbox.environ["SUBLET_HOME"] = str(blocked / "home")
    sandbox.write("ok.py", "print('ran')")
    answer = sandbox.sublet("run", "ok.py")
    assert answer.returncode == 2
    assert "cannot be used: Not a directory" in answer.stderr
    assert "SUBLET_HOME" in answer.stderr
    sandbox.environ["SUBLET_HOME"] = str(sandbox.home)


def test_a_wrong_capacity_is_said(new_sandbox: NewSandbox) -> None:
    """The error comes before anything is started."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="lots")
    answer = sandbox.sublet("status")
    assert answer.returncode == 2
    assert "SUBLET_CPU_MEMORY='lots'" in answer.stderr


def test_a_full_disk_refuses_jobs_and_recovers(new_sandbox: NewSandbox) -> None:
    """Running programs live on, and submissions work again when there is room."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)")
    sandbox.write("ok.py", "print('ran')")
    first = sandbox.start("run", "wait.py")
    wait_for(lambda: [r for r in sandbox.status()["leases"] if r["state"] == "running"], "it runs")
    pid = sandbox.status()["pid"]
    _limit_files(pid, 0)
    refused = sandbox.sublet("run", "ok.py")
    assert refused.returncode == 2
    assert "The ledger cannot be written" in refused.stderr
    assert "ran" not in refused.stdout
    assert sandbox.status()["pid"] == pid
    assert len(sandbox.status()["leases"]) == 1
    _limit_files(pid, None)
    assert sandbox.sublet("run", "-q", "ok.py", check=True).stdout == "ran\n"
    sandbox.write("go", "")
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 0


def _limit_files(pid: int, size: int | None) -> None:
    """Let a process write files up to this size only, as a full disk would."""
    import resource

    most = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def test_a_damaged_ledger_is_never_reset_and_can_be_recovered(new_sandbox: NewSandbox) -> None:
    """The program that ran meanwhile keeps its lease."""
    sandbox = new_sandbox()
    sandbox.write("wait.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)")
    client = sandbox.start("run", "--memory", "128MiB", "wait.py")
    (row,) = wait_for(
        lambda: [r for r in sandbox.status()["leases"] if r["state"] == "running"], "it runs"
    )
    client.send_signal(signal.SIGSTOP)
    sandbox.sublet("down", check=True)
    ledger = sandbox.home / "ledger.sqlite"
    for path in (ledger, Path(f"{ledger}-wal"), Path(f"{ledger}-shm")):
        path.unlink(missing_ok=True)
    ledger.write_bytes(b"SQLite format 3\0" + os.urandom(8176))
    damaged = ledger.read_bytes()

    refused = sandbox.sublet("status")
    assert refused.returncode == 2
    assert "is damaged" in refused.stderr
    assert "sublet recover" in refused.stderr
    assert ledger.read_bytes() == damaged

    answer = sandbox.sublet("recover", check=True)
    assert "1 programs were running" in answer.stdout
    (aside,) = sandbox.home.glob("ledger.damaged-*.sqlite")
    assert aside.read_bytes() == damaged
    (again,) = wait_for(
        lambda: [r for r in sandbox.status()["leases"] if r["state"] == "running"], "it is found"
    )
    assert (again["pid"], again["lease"]) == (row["pid"], 128 << 20)
    client.send_signal(signal.SIGCONT)
    sandbox.write("go", "")
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 0
    assert sandbox.sublet("recover").returncode == 2  # A broker runs.
    sandbox.sublet("down", check=True)
    assert "sound" in sandbox.sublet("recover", check=True).stdout


def test_rubbish_on_the_socket_is_refused_and_the_broker_lives(new_sandbox: NewSandbox) -> None:
    """Too long, not msgpack, no streams, half a message."""
    sandbox = new_sandbox()
    pid = sandbox.status()["pid"]
    for data in (
        b"\xff\xff\xff\xff",
        b"\0\0\0\x04abcd",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x10\x81\xa4type\xa3run",
        b"\0\0",
    ):
        with socket.socket(socket.AF_UNIX) as sock:
            directory = os.open(sandbox.home, os.O_RDONLY)
            sock.connect(f"/proc/self/fd/{directory}/broker.sock")
            os.close(directory)
            sock.sendall(data)
    assert sandbox.status()["pid"] == pid
