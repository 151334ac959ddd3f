"""A person at a real terminal: Ctrl-C, Ctrl-Z, the window's size, closing it, and `kill -9`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sandbox import PATIENCE, SUBLET, Sandbox, wait_for
from support.terminal import Terminal

LOOP = """
import os, sys, time
try:
    print("pid", os.getpid(), flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _pid(screen: str) -> int:
    return int(screen.partition("pid ")[2].split()[0])


def _leases(sandbox: Sandbox) -> list[str]:
    return [row["name"] for row in sandbox.status()["leases"]]


@pytest.mark.every_python
def test_a_program_has_the_terminal_for_its_own(sandbox: Sandbox) -> None:
    """It reads what is typed, and sees that it talks to a terminal."""
    sandbox.write(
        "talk.py",
        "import sys, os\n"
        "print('tty', sys.stdin.isatty(), sys.stdout.isatty(), os.get_terminal_size().columns)\n"
        "print('hello', input('name? '))\n",
    )
    terminal = Terminal(sandbox, "run", "talk.py")
    terminal.expect("tty True True 80")
    terminal.expect("name? ")
    terminal.type("Ada\n")
    terminal.expect("hello Ada")
    assert terminal.wait() == 0
    assert "lease" in terminal.screen


@pytest.mark.every_python
def test_ctrl_c_reaches_the_program_and_its_code_comes_back(sandbox: Sandbox) -> None:
    """As KeyboardInterrupt, once."""
    sandbox.write("loop.py", LOOP)
    terminal = Terminal(sandbox, "run", "loop.py")
    terminal.expect("pid ")
    terminal.type("\x03")
    assert terminal.wait() == 5
    assert terminal.screen.count("interrupted") == 1


def test_ctrl_c_ends_the_programs_children_too(sandbox: Sandbox) -> None:
    """The whole process group hears it, as in a shell."""
    sandbox.write(
        "parent.py",
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "print('pid', child.pid, flush=True)\n"
        "sys.exit(3 if child.wait() == -2 else 4)\n",
    )
    terminal = Terminal(sandbox, "run", "parent.py")
    child = _pid(terminal.expect("pid "))
    terminal.expect("\n")
    terminal.type("\x03")
    assert terminal.wait() == 130
    wait_for(lambda: _gone(child), "the child has ended")


@pytest.mark.every_python
def test_ctrl_z_stops_the_program_and_continuing_wakes_it(sandbox: Sandbox) -> None:
    """Job control of the shell works."""
    sandbox.write(
        "count.py",
        "import os, time\nprint('pid', os.getpid(), flush=True)\n"
        "while not os.path.exists('stop'): time.sleep(0.02)\nprint('woken')\n",
    )
    terminal = Terminal(sandbox, "run", "count.py")
    program = _pid(terminal.expect("pid "))

    def state(pid: int) -> str:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    terminal.expect("\n")
    terminal.type("\x1a")
    wait_for(lambda: state(program) == "T", "the program is stopped")
    wait_for(lambda: state(terminal.pid) == "T", "the command is stopped")
    os.kill(terminal.pid, signal.SIGCONT)
    wait_for(lambda: state(program) in "SR", "the program runs again")
    sandbox.write("stop", "")
    terminal.expect("woken")
    assert terminal.wait() == 0


@pytest.mark.every_python
@pytest.mark.parametrize("first", ["", "import tensorflow"])
def test_a_line_is_typed_in_as_with_python(sandbox: Sandbox, first: str) -> None:
    """TensorFlow brings an editor of lines along, where Python does (3.13)."""
    sandbox.write("ask.py", f"{first}\nprint('got', ascii(input('say: ')))")
    answers = []
    for command in ([sys.executable], [*SUBLET, "run"]):
        terminal = Terminal(sandbox, "ask.py", command=command)
        terminal.expect("say: ")
        terminal.type("end\x01start\r")
        answers.append(terminal.expect("got '").rpartition("got ")[2].split()[0])
        assert terminal.wait() == 0
    assert answers[0] == answers[1]


@pytest.fixture
def slow_python(tmp_path: Path) -> tuple[str, Path]:
    """An interpreter whose TensorFlow is loaded when the file is there."""
    venv, go = tmp_path / "slow", tmp_path / "go"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "tensorflow.py").write_text(
        "import os, time\n__version__ = '0'\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    )
    return str(venv / "bin/python"), go


def test_ctrl_z_while_tensorflow_is_loaded_stops_the_program_too(
    sandbox: Sandbox, slow_python: tuple[str, Path]
) -> None:
    """It is started when the command goes on, and not before."""
    python, go = slow_python
    sandbox.write("train.py", "open('ran', 'w').close()")
    terminal = Terminal(sandbox, "run", "--python", python, "train.py")
    terminal.expect("being loaded")
    terminal.type("\x1a")
    wait_for(
        lambda: any("is stopped" in row["reason"] for row in sandbox.status()["waiting"]),
        "the broker knows that the command is stopped",
    )
    go.touch()
    wait_for(
        lambda: any(
            (row["python"], row["state"]) == (python, "warm")
            for row in sandbox.status()["nurseries"]
        ),
        "TensorFlow is loaded",
    )
    assert sandbox.status()["leases"] == []
    assert not (sandbox.work / "ran").exists()
    os.kill(terminal.pid, signal.SIGCONT)
    assert terminal.wait() == 0
    assert (sandbox.work / "ran").exists()


@pytest.mark.every_python
@pytest.mark.parametrize("how", ["\x03", "\x1c", "TERM", "closed"])
def test_a_command_ends_at_once_while_tensorflow_is_loaded(
    new_sandbox: Callable[..., Sandbox], slow_python: tuple[str, Path], how: str
) -> None:
    """By a key, by a signal, or because its terminal was closed."""
    sandbox = new_sandbox()  # Nurseries that nobody has used yet keep others out for a while.
    sandbox.write("train.py", "open('ran', 'w').close()")
    terminal = Terminal(sandbox, "run", "--python", slow_python[0], "train.py")
    terminal.expect("being loaded")
    if how == "closed":
        terminal.hang_up()
        os.waitpid(terminal.pid, 0)
    elif how == "TERM":
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.wait() == 128 + signal.SIGTERM
    else:
        terminal.type(how)
        assert terminal.wait() == 128 + {"\x03": signal.SIGINT, "\x1c": signal.SIGQUIT}[how]
    wait_for(lambda: sandbox.status()["waiting"] == [], "the job is withdrawn")
    slow_python[1].touch()  # So that the nursery, which nobody wants any more, is soon done.
    assert not (sandbox.work / "ran").exists()


def test_a_resized_window_is_noticed(sandbox: Sandbox) -> None:
    """SIGWINCH is passed on."""
    sandbox.write(
        "size.py",
        "import os, signal, time\nseen = []\n"
        "signal.signal(signal.SIGWINCH, lambda *_: seen.append(os.get_terminal_size().columns))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(0.02)\nprint('columns', seen[0])\n",
    )
    terminal = Terminal(sandbox, "run", "size.py")
    terminal.expect("ready")
    terminal.resize(30, 123)
    terminal.expect("columns 123")
    assert terminal.wait() == 0


@pytest.mark.every_python
def test_closing_the_terminal_ends_the_program(sandbox: Sandbox) -> None:
    """It gets SIGHUP, as without us, and the lease ends."""
    sandbox.write("loop.py", LOOP)
    terminal = Terminal(sandbox, "run", "--name", "hung-up", "loop.py")
    program = _pid(terminal.expect("pid "))
    assert "hung-up" in _leases(sandbox)
    terminal.hang_up()
    wait_for(lambda: _gone(program), "the program has ended")
    wait_for(lambda: "hung-up" not in _leases(sandbox), "the lease has ended")
    os.waitpid(terminal.pid, 0)


@pytest.mark.parametrize("stubborn", [False, True])
def test_killing_the_command_ends_the_program(sandbox: Sandbox, stubborn: bool) -> None:
    """With SIGTERM first; one that ignores it is ended all the same."""
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    sandbox.write("loop.py", ignore + LOOP)
    terminal = Terminal(sandbox, "run", "--name", "killed", "loop.py")
    program = _pid(terminal.expect("pid "))
    terminal.kill()
    wait_for(lambda: _gone(program), "the program has ended")
    wait_for(lambda: "killed" not in _leases(sandbox), "the lease has ended")
    os.waitpid(terminal.pid, 0)


def test_what_a_program_leaves_behind_ends_with_it(sandbox: Sandbox) -> None:
    """Even a child that has made a session of its own and ignores everything."""
    sandbox.write(
        "leave.py",
        "import subprocess, sys\n"
        "code = ('import signal, time, os\\n'\n"
        "        'signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n'\n"
        "        'print(\"pid\", os.getpid(), flush=True)\\n'\n"
        "        'time.sleep(1000)')\n"
        "child = subprocess.Popen([sys.executable, '-c', code], start_new_session=True,\n"
        "                         stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline(), flush=True)\n",
    )
    answer = sandbox.sublet("run", "--name", "leaver", "leave.py", check=True)
    assert _gone(_pid(answer.stdout))
    assert "leaver" not in _leases(sandbox)


def test_a_pipe_closes_when_the_program_has_ended(sandbox: Sandbox) -> None:
    """Nobody else keeps a program's streams open."""
    sandbox.write("many.py", "for i in range(100000): print(i)")
    answer = sandbox.start("run", "-q", "many.py")
    assert answer.stdout is not None
    assert answer.stdout.readline() == "0\n"
    assert answer.stdout.read().splitlines()[-1] == "99999"
    assert answer.wait(PATIENCE) == 0
    assert answer.stderr is not None
    answer.stdout.close()
    answer.stderr.close()
