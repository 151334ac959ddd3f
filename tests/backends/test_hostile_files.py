"""Files and sockets of an attempt are in reach of its program: what is put there harms nobody."""

import array
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sublet.backends.local.endings import read_ending
from sublet.formats import attempt_files
from sublet.keeper import process_tree
from support.launcher_harness import LaunchedAttempt, LauncherHarness
from support.sandbox import wait_for

WAIT = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""
FORGED: dict[str, Any] = {
    "an end": {"status": 0, "stopped": ""},
    "an end that nobody saw": {"status": None},
    "no status": {"foo": 1},
    "a status of another type": {"status": "0"},
    "a status that waitpid cannot give": {"status": 1 << 40},
    "lists": {"status": [], "left": 5, "ran": {}, "system_peak": "x", "stopped": 3},
    "no object": [1, 2],
}


def _write(path: Path, what: str) -> None:
    match what:
        case "not JSON":
            path.write_bytes(b"\xff{")
        case "nested":
            path.write_text("[" * 200_000)
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 33)
        case "a directory":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a loop of links":
            path.symlink_to(path)
        case _:
            path.write_text(json.dumps(FORGED[what]))


STRANGE = [*FORGED, "not JSON", "nested", "huge", "a directory", "a pipe", "a loop of links"]


def _end(launched: LaunchedAttempt) -> int:
    """Let it end; its own exit code."""
    (launched.launcher.work / "go").touch()
    return os.waitstatus_to_exitcode(launched.ended()["status"])


@pytest.mark.parametrize("what", STRANGE)
def test_no_exit_record_ends_a_program_that_runs(launcher: LauncherHarness, what: str) -> None:
    """Not for the broker that comes next, and not when the keeper is killed."""
    launched = launcher.start("1.1", WAIT)
    launched.says("up")
    _write(Path(launched.directory) / "exit.json", what)
    launcher.fire()
    launcher.hire()
    launcher.call("adopt", "1.1", launched.keeper, launched.worker)
    launched.call("pause", True)
    wait_for(launched.stands, "it hears of its keeper")
    launched.call("pause", False)
    launched.kill_keeper()
    launched.call("pause", True)
    wait_for(launched.stands, "it hears of its broker")
    launched.call("pause", False)
    assert process_tree.start_time(launched.worker) is not None
    assert _end(launched) == 7 if what != "an end" else _end(launched) in (0, 7)


@pytest.mark.parametrize(
    "name", ["worker.json", "claim", "spec.json", "runtime.json", "reaped.json"]
)
@pytest.mark.parametrize("what", ["an end", "lists", "a pipe"])
def test_no_other_record_harms_a_broker(launcher: LauncherHarness, name: str, what: str) -> None:
    """It knows keeper and worker from its ledger."""
    launched = launcher.start("1.1", WAIT)
    launched.says("up")
    launcher.fire()
    path = Path(launched.directory) / name
    path.unlink(missing_ok=True)
    _write(path, what)
    launched.kill_keeper()
    launcher.hire()
    launcher.call("adopt", "1.1", launched.keeper, launched.worker)
    launched.call("pause", True)
    wait_for(lambda: process_tree.stands(launched.worker) or launched.frozen(), "it stands")
    launched.call("pause", False)
    assert _end(launched) == 7


def test_a_program_that_removes_its_directory_is_not_started_again(
    launcher: LauncherHarness,
) -> None:
    """Neither is its lease taken from it while it runs."""
    directory = launcher.runs / "1.1"
    launched = launcher.start("1.1", f"import shutil\nshutil.rmtree({str(directory)!r})\n" + WAIT)
    launched.says("up")
    launcher.fire()
    launcher.hire()
    launcher.call("adopt", "1.1", launched.keeper, launched.worker)
    (launcher.work / "go").touch()
    ending = launched.ended()
    assert ending["status"] is None  # It has taken the place where its code would be.
    assert "never ran" not in [one["event"] for one in launcher.heard]


def _packets() -> list[bytes]:
    wrong: list[object] = [
        [],
        "stop",
        {"stop": "now"},
        {"stop": None},
        {"stop": float("nan")},
        {"stop": -1},
        {"stop": 1e400},
        {"pause": "yes"},
        {"duty": "all"},
        {"duty": [1]},
        {"processors": 3},
        {"processors": ["x"]},
        {"processors": None},
        {"signal": "INT"},
        {"signal": 1 << 40},
        {"signal": -9},
        {"broker": 5, "log": 6},
        {"broker": "/x"},
        {"broker": "\0", "log": "\0"},
    ]
    return [
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"stop": ' + b"9" * 5000 + b"}",
        *(json.dumps(packet).encode() for packet in wrong),
    ]


def _connect(directory: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = os.open(directory, os.O_RDONLY)
    try:
        sock.connect(f"/proc/self/fd/{number}/keeper.sock")
    finally:
        os.close(number)
    return sock


def test_packets_that_make_no_sense_do_not_harm_a_keeper(launcher: LauncherHarness) -> None:
    """Nor do descriptors that come with them: they are closed."""
    launched = launcher.start("1.1", WAIT)
    launched.says("up")
    before = len(os.listdir(f"/proc/{launched.keeper}/fd"))
    null = os.open(os.devnull, os.O_RDONLY)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 7))]
    for packet in _packets():
        with contextlib.closing(_connect(launched.directory)) as sock:
            sock.sendmsg([packet], beside)
            sock.send(packet)
    os.close(null)
    with contextlib.closing(_connect(launched.directory)) as sock:
        # It hears one after the other, so it has heard them all when it stands.
        sock.send(b'{"pause": true}')
        wait_for(launched.stands, "it stands")
        sock.send(b'{"pause": false}')
    wait_for(lambda: len(os.listdir(f"/proc/{launched.keeper}/fd")) <= before, "all are closed")
    assert _end(launched) == 7


def test_a_program_cannot_command_its_keeper(launcher: LauncherHarness) -> None:
    """It may ask for a broker, and for nothing else."""
    code = (
        "import os, socket\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "os.chdir(os.environ['ATTEMPT'])\n"
        "sock.connect('keeper.sock')\n"
        "os.chdir(os.environ['WORK'])\n"
        'sock.send(b\'{"stop": 0.0, "why": "preempted"}\')\n'
    )
    environ = {**os.environ, "ATTEMPT": str(launcher.runs / "1.1"), "WORK": str(launcher.work)}
    environ |= {"SUBLET_SHOP": str(launcher.root)}
    launched = launcher.start("1.1", code + WAIT, environ=environ)
    launched.says("up")
    launched.call("pause", True)
    wait_for(launched.stands, "its keeper has heard what came before")
    launched.call("pause", False)
    (launcher.work / "go").touch()
    ending = launched.ended()
    assert (os.waitstatus_to_exitcode(ending["status"]), ending["stopped"]) == (7, "")


def test_who_listens_in_the_place_of_a_keeper_is_not_believed(launcher: LauncherHarness) -> None:
    """It says that the program has ended."""
    code = (
        "import os, socket, threading\n"
        "os.chdir(os.environ['ATTEMPT'])\n"
        "while not os.path.exists('keeper.sock'): pass\n"
        "os.unlink('keeper.sock')\n"
        "liar = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "liar.bind('keeper.sock')\n"
        "liar.listen(8)\n"
        "os.chdir(os.environ['WORK'])\n"
        "def lie():\n"
        "    while True:\n"
        "        link, _ = liar.accept()\n"
        "        print('asked', flush=True)\n"
        '        try: link.send(b\'{"event": "ended", "status": 0}\')\n'
        "        except OSError: pass\n"
        "threading.Thread(target=lie, daemon=True).start()\n"
    )
    environ = {**os.environ, "ATTEMPT": str(launcher.runs / "1.1"), "WORK": str(launcher.work)}
    environ |= {"SUBLET_SHOP": str(launcher.root)}
    launched = launcher.start("1.1", code + WAIT, environ=environ)
    launched.says("up")
    launcher.fire()
    launcher.hire()
    launcher.call("adopt", "1.1", launched.keeper, launched.worker)
    launched.says("asked")
    assert _end(launched) == 7


@pytest.mark.parametrize("what", ["no status", "a status of another type", "no object"])
def test_an_exit_record_that_makes_no_sense_is_none(tmp_path: Path, what: str) -> None:
    _write(tmp_path / "exit.json", what)
    assert read_ending(attempt_files.read(str(tmp_path), "exit.json")) is None
