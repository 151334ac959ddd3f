"""How a command line is read."""

import os
import resource
import shutil
import signal
import sys
import zipfile
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from sublet.client import program as asked
from sublet.domain.job import Process, Program, Surroundings
from sublet.errors import BadRequest
from sublet.wire.pack import pack

OURS = os.fsencode(sys.executable)


def read_command(words: list[str], python: str | None = None) -> Program:
    """As the broker understands it."""
    return msgspec.msgpack.decode(pack(asked.read_command(words, python)), type=Program)


def why_cold(program: Program) -> str:
    return asked.why_cold(
        {
            "kind": program.kind,
            "target": program.target,
            "args": program.args,
            "flags": program.flags,
            "python": program.python,
        }
    )


def surroundings() -> Surroundings:
    return msgspec.msgpack.decode(pack(asked.surroundings()), type=Surroundings)


def this_process() -> Process:
    return msgspec.msgpack.decode(pack(asked.this_process()), type=Process)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment in which nothing is active."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA")):
            monkeypatch.delenv(name)
    return tmp_path


def write(path: Path, content: bytes = b"print(1)\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def python_at(path: Path) -> Path:
    """An interpreter of another name that can be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)
    return path


# Which program.


def test_a_script_keeps_its_path_as_typed_and_its_arguments(work: Path) -> None:
    write(work / "train.py")
    program = read_command(["train.py", "--epochs", "3", "--", "-m"])
    assert program == Program("script", b"train.py", (b"--epochs", b"3", b"--", b"-m"), (), OURS)
    assert program.argv() == [OURS, b"train.py", b"--epochs", b"3", b"--", b"-m"]


def test_a_script_needs_no_ending_and_no_permission_to_execute(work: Path) -> None:
    write(work / "train")
    assert read_command(["train"]).kind == "script"
    write(work / "tool", b"#!/usr/bin/env python3\n", 0o755)
    assert read_command(["./tool"]).kind == "script"


def test_names_that_are_not_text_reach_the_program_as_they_are(work: Path) -> None:
    name = b"caf\xe9.py"
    write(work / os.fsdecode(name))
    program = read_command([os.fsdecode(name), os.fsdecode(b"\xff")])
    assert (program.target, program.args) == (name, (b"\xff",))


def test_a_directory_or_an_archive_with_a_main_is_a_script(work: Path) -> None:
    write(work / "package" / "__main__.py")
    assert read_command(["package"]).kind == "script"
    with zipfile.ZipFile(work / "app.pyz", "w") as archive:
        archive.write(work / "package" / "__main__.py", "__main__.py")
    assert read_command(["app.pyz"]).kind == "script"


def test_a_module_is_run_as_python_runs_it(work: Path) -> None:
    module = read_command(["-m", "mypkg.train", "-m", "x"])
    assert module == Program("module", b"mypkg.train", (b"-m", b"x"), (), OURS)
    with pytest.raises(BadRequest, match="memory is --memory"):
        read_command(["-m", "64MiB", "train.py"])
    with pytest.raises(BadRequest, match="needs the name of a module"):
        read_command(["-m"])


def test_python_in_front_names_the_interpreter_and_its_options(work: Path) -> None:
    write(work / "train.py")
    python = python_at(work / "bin" / "python3.11")
    here = os.fsencode(python)
    train = (b"train.py", (b"-x",))
    for options in ([], ["-u"], ["-W", "error"], ["-X", "dev", "-O"], ["-b", "-b"]):
        flags = tuple(map(os.fsencode, options))
        assert read_command([str(python), *options, "train.py", "-x"]) == Program(
            "script", *train, flags, here
        )
    module = read_command([str(python), "-u", "-m", "mypkg.train", "-m", "x"])
    assert module == Program("module", b"mypkg.train", (b"-m", b"x"), (b"-u",), here)
    assert module.argv() == [here, b"-u", b"-m", b"mypkg.train", b"-m", b"x"]
    code = read_command([str(python), "-c", "print(1)", "a"])
    assert code == Program("code", b"print(1)", (b"a",), (), here)
    assert code.argv() == [here, b"-c", b"print(1)", b"a"]


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        (["-mpkg.train", "x"], ("module", b"pkg.train", (b"x",), ())),
        (["-um", "pkg", "-m"], ("module", b"pkg", (b"-m",), (b"-u",))),
        (["-umpkg"], ("module", b"pkg", (), (b"-u",))),
        (["-cprint(1)", "a"], ("code", b"print(1)", (b"a",), ())),
        (["-uBc", "print(1)"], ("code", b"print(1)", (), (b"-u", b"-B"))),
        (["-Wignore", "train.py"], ("script", b"train.py", (), (b"-W", b"ignore"))),
        (["-uWignore", "train.py"], ("script", b"train.py", (), (b"-u", b"-W", b"ignore"))),
        (["-Xdev", "-mpkg"], ("module", b"pkg", (), (b"-X", b"dev"))),
        (["-OO", "train.py", "-O"], ("script", b"train.py", (b"-O",), (b"-O", b"-O"))),
        (
            ["--check-hash-based-pycs", "always", "train.py"],
            ("script", b"train.py", (), (b"--check-hash-based-pycs", b"always")),
        ),
    ],
)
def test_options_are_read_as_python_reads_them(
    work: Path,
    typed: list[str],
    means: tuple[Literal["script", "module", "code"], bytes, tuple[bytes, ...], tuple[bytes, ...]],
) -> None:
    write(work / "train.py")
    python = python_at(work / "bin" / "python3")
    assert read_command([str(python), *typed]) == Program(*means, os.fsencode(python))


def test_what_only_sounds_like_python_is_a_command(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "train.py")
    monkeypatch.setenv("PATH", str(work / "bin"))
    for name in ("ipython", "bpython", "python-config", "python3.11-config", "pythonw"):
        there = write(work / "bin" / name, b"#!/bin/sh\n", 0o755)
        program = read_command([name, "-m", "train.py"])
        assert program == Program("command", os.fsencode(there), (b"-m", b"train.py"))
        assert why_cold(program) == "not a Python program"


def test_python_without_a_program_is_a_command_like_any_other(work: Path) -> None:
    python = python_at(work / "bin" / "python")
    here = os.fsencode(python)
    for words in ([], ["-"], ["--version"], ["-i"], ["-u", "-"], ["-W", "error"]):
        program = read_command([str(python), *words])
        assert program == Program("command", here, tuple(map(os.fsencode, words)))
        assert program.argv() == [here, *map(os.fsencode, words)]


def test_python_is_found_where_a_shell_would_find_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "train.py")
    python = python_at(work / "env" / "bin" / "python")
    monkeypatch.setenv("PATH", str(python.parent), prepend=os.pathsep)
    assert read_command(["python", "train.py"]).python == os.fsencode(python)


def test_other_programs_are_commands(work: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    assert read_command(["sh", "-c", "exit 3"]) == Program(
        "command", os.fsencode(shell), (b"-c", b"exit 3")
    )
    write(work / "run.sh", b"#!/bin/sh\nexit 3\n", 0o755)
    assert read_command(["./run.sh"]).target == os.fsencode(work / "run.sh")


def test_an_executable_of_another_kind_is_a_command_and_no_script(work: Path) -> None:
    write(work / "binary", b"\x7fELF\0\0", 0o755)
    write(work / "sh", b"#!/bin/sh\nexit 3\n", 0o755)
    for name in ("binary", "./binary", "sh", "./sh"):
        assert read_command([name, "x"]) == Program(
            "command", os.fsencode(work / name.removeprefix("./")), (b"x",)
        )


def test_a_directory_does_not_hide_the_command_of_its_name(work: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    (work / "sh").mkdir()
    assert read_command(["sh", "-c", "exit 3"]).target == os.fsencode(shell)
    write(work / "sh" / "__main__.py")
    assert read_command(["sh"]).kind == "script"


# Which interpreter.


def test_a_script_runs_in_the_active_environment_else_in_ours(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "train.py")
    conda, venv = python_at(work / "conda/bin/python"), python_at(work / "venv/bin/python")
    assert read_command(["train.py"]).python == OURS
    monkeypatch.setenv("CONDA_PREFIX", str(work / "conda"))
    assert read_command(["train.py"]).python == os.fsencode(conda)
    monkeypatch.setenv("VIRTUAL_ENV", str(work / "venv"))
    assert read_command(["train.py"]).python == os.fsencode(venv)
    venv.unlink()
    assert read_command(["train.py"]).python == os.fsencode(conda)


def test_an_interpreter_that_was_named_beats_the_active_one(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "train.py")
    python_at(work / "venv/bin/python")
    monkeypatch.setenv("VIRTUAL_ENV", str(work / "venv"))
    named = python_at(work / "other/bin/python")
    assert read_command(["train.py"], str(named)).python == os.fsencode(named)


# What is refused.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Nothing to run."),
        (["missing.py"], "missing.py: there is no such file."),
        (["no-such-command"], "no-such-command: there is no such file or command."),
        (["directory"], "directory is a directory without a __main__.py."),
        (["picture.png"], "picture.png is not a Python program."),
        (["./job.sh", "x"], "./job.sh is no Python program, and may not be executed."),
        (["./python9.9", "train.py"], "./python9.9: there is no such interpreter."),
        ([sys.executable, "missing.py"], "missing.py: there is no such file."),
        ([sys.executable, "directory"], "directory is a directory without a __main__.py."),
    ],
)
def test_what_cannot_run_is_refused_with_what_to_do(
    work: Path, words: list[str], says: str
) -> None:
    (work / "directory").mkdir()
    write(work / "picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    write(work / "job.sh", b"#!/bin/sh\necho x\n")
    with pytest.raises(BadRequest) as refusal:
        read_command(words)
    assert refusal.value.message == says
    assert refusal.value.hint


def test_a_shells_script_that_may_not_be_executed_is_refused_with_what_runs_it(work: Path) -> None:
    """And what that says is accepted."""
    write(work / "job.sh", b"#! /usr/bin/env sh\necho x\n")
    with pytest.raises(BadRequest) as refusal:
        read_command(["job.sh"])
    assert "`chmod +x job.sh`" in refusal.value.hint
    assert "`sublet run /usr/bin/env sh job.sh`" in refusal.value.hint
    assert read_command(["/usr/bin/env", "sh", "job.sh"]).kind == "command"
    assert read_command([sys.executable, "job.sh"]).kind == "script"
    write(work / "job.sh", b"#! /usr/bin/env sh\necho x\n", 0o755)
    assert read_command(["./job.sh"]).kind == "command"


def test_an_interpreter_that_is_not_there_is_refused(work: Path) -> None:
    write(work / "train.py")
    with pytest.raises(BadRequest, match=r"--python \./nowhere: there is no such interpreter"):
        read_command(["train.py"], "./nowhere")


def test_a_script_that_cannot_be_read_is_refused(work: Path) -> None:
    # A path through a file fails for everybody, root included.
    write(work / "file")
    with pytest.raises(BadRequest, match=r"file/train\.py cannot be read: Not a directory"):
        read_command(["file/train.py"])


# Warm or cold.


def script(
    work: Path, content: bytes = b"import tensorflow\n", flags: tuple[bytes, ...] = ()
) -> Program:
    write(work / "train.py", content)
    return Program("script", b"train.py", (), flags, OURS)


def test_an_ordinary_script_may_start_warm(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "")
    assert why_cold(script(work)) == ""
    assert why_cold(script(work, flags=(b"-u", b"-B"))) == ""
    assert why_cold(Program("module", b"mypkg.train", (), (), OURS)) == ""
    assert why_cold(Program("code", b"print(1)", (), (), OURS)) == ""


def test_what_a_fork_could_not_honour_starts_cold_and_says_why(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_cold(Program("command", b"/bin/sh")) == "not a Python program"
    assert why_cold(script(work, flags=(b"-u", b"-O"))) == "the interpreter option -O"
    assert why_cold(script(work, flags=(b"-W", b"ignore"))) == "the interpreter option -W"
    legacy = b"import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
    assert why_cold(script(work, legacy)) == (
        "the program sets TF_USE_LEGACY_KERAS, which counts when a package is loaded"
    )
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert why_cold(script(work)) == "PYTHONHASHSEED is set"
    monkeypatch.delenv("PYTHONHASHSEED")
    monkeypatch.setenv("PYTHON_GIL", "0")
    assert why_cold(script(work)) == "PYTHON_GIL is set"


def test_variables_that_only_look_like_the_interpreters_start_nobody_cold(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of Python set the version, makefiles the interpreter."""
    for name in ("PYTHON", "PYTHON_VERSION", "PYTHON_SHA256", "PYTHON_KEYRING_BACKEND"):
        monkeypatch.setenv(name, "x")
    assert why_cold(script(work)) == ""


def test_a_directory_may_start_warm(work: Path) -> None:
    write(work / "package" / "__main__.py")
    assert why_cold(read_command(["package"])) == ""


# Surroundings.


def test_surroundings_are_those_of_this_process(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"SUBLET_TEST", b"caf\xe9")
    before = os.umask(0o027)
    try:
        around = surroundings()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert around.umask == 0o027
    assert around.cwd == os.fsencode(work)
    assert around.environ[b"SUBLET_TEST"] == b"caf\xe9"
    assert set(around.affinity) == os.sched_getaffinity(0)
    assert around.limits[resource.RLIMIT_NOFILE] == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_signals_that_nohup_ignores_stay_ignored_and_those_of_python_do_not(work: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignored = surroundings().ignored
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in ignored
    assert signal.SIGPIPE not in ignored
    assert signal.SIGHUP not in surroundings().ignored


def test_a_working_directory_that_is_gone_is_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = work / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadRequest, match="The current directory cannot be used"):
        surroundings()


def test_this_process_is_told_apart_from_a_later_one_of_the_same_number() -> None:
    me = this_process()
    assert me.pid == os.getpid()
    assert me.start > 0
    assert me == this_process()
