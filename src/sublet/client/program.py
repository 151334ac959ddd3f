"""Reads a command line: which program, in which interpreter, in which surroundings.

The results are plain dicts with the fields of the records in `domain.job`, so that a job can be
sent with nothing but the standard library loaded.
"""

import os
import resource
import signal
import sys

from sublet import descriptors
from sublet.client import early_settings
from sublet.errors import BadRequest
from sublet.keeper import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sublet.domain.job_fields import ProcessFields, ProgramFields, SurroundingsFields

_HARMLESS_FLAGS = {"-u", "-B"}
_APPLIED_LATER = {
    "PYTHONBREAKPOINT",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONFAULTHANDLER",
    "PYTHONIOENCODING",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "PYTHONSTARTUP",
    "PYTHONUNBUFFERED",
}
"""The interpreter's variables that a forked worker can still honour."""
_WITH_UNDERSCORE = {
    "PYTHON_CONTEXT_AWARE_WARNINGS",
    "PYTHON_CPU_COUNT",
    "PYTHON_FROZEN_MODULES",
    "PYTHON_GIL",
    "PYTHON_JIT",
    "PYTHON_LAZY_IMPORTS",
    "PYTHON_PERF_JIT_SUPPORT",
    "PYTHON_PRESITE",
    "PYTHON_THREAD_INHERIT_CONTEXT",
    "PYTHON_TLBC",
}
"""The interpreter's own variables of this form. Others are not: container images of Python set
PYTHON_VERSION."""
_PYTHON_ENDINGS = (".py", ".pyz", ".zip")


def read_command(words: list[str], python: str | None = None) -> "ProgramFields":
    """The program that the words after `sublet run` name."""
    if not words:
        raise BadRequest("Nothing to run.", "Name a program, such as train.py.")
    first, rest = words[0], words[1:]
    if first == "-m":
        return _module(rest, python)
    if _is_python(os.path.basename(first)):
        return _python_command(first, rest)
    if _is_other_executable(first):
        return _other(os.fsencode(os.path.abspath(first)), rest)
    if os.path.isfile(first) or first.endswith(".py") or _has_main(first):
        _check_script(first)
        _check_language(first)
        return _python_program("script", first, rest, [], interpreter(python))
    return _command(first, rest)


def _module(words: list[str], python: str | None) -> "ProgramFields":
    """`-m mypkg.train ARGS`, as Python takes it."""
    if not words:
        raise BadRequest("-m needs the name of a module.", "Write `-m mypkg.train`.")
    name, *args = words
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadRequest(
            f"-m {name!r} is not the name of a module.",
            "-m runs a module, as `python -m` does; memory is --memory, or --mem.",
        )
    return _python_program("module", name, args, [], interpreter(python))


def surroundings() -> "SurroundingsFields":
    """What a child of this process would inherit."""
    umask = os.umask(0)
    os.umask(umask)
    own = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these for itself.
    ignored = tuple(
        number
        for number in signal.valid_signals()
        if number not in own and signal.getsignal(number) is signal.SIG_IGN
    )
    limits = {
        getattr(resource, name): resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    }
    limits[resource.RLIMIT_NOFILE] = descriptors.inherited()
    try:
        cwd = os.getcwdb()
    except OSError as error:
        raise BadRequest(
            f"The current directory cannot be used: {error.strerror}.", "Go to one that exists."
        ) from error
    return {
        "cwd": cwd,
        "environ": dict(os.environb),
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": tuple(sorted(os.sched_getaffinity(0))),
        "ignored": tuple(int(number) for number in ignored),
        "limits": limits,
    }


def this_process() -> "ProcessFields":
    """The client's pid and start time."""
    return {"pid": os.getpid(), "start": process_tree.start_time(os.getpid()) or 0}


def why_cold(program: "ProgramFields") -> str:
    """Why this program needs a fresh interpreter; empty if a warm fork behaves like one."""
    if not program.get("python"):
        return "not a Python program"
    for flag in map(os.fsdecode, program.get("flags", ())):
        if flag not in _HARMLESS_FLAGS:
            return f"the interpreter option {flag}"
    for name, value in os.environ.items():
        if value and _is_read_at_the_start(name):
            return f"{name} is set"
    if name := early_settings.differing(_source(program), os.environ):
        return f"the program sets {name}, which counts when a package is loaded"
    return ""


def _source(program: "ProgramFields") -> bytes:
    """The text of a script or of `-c`; empty for a module, a directory or an archive."""
    if program["kind"] == "code":
        return program["target"]
    try:
        with open(program["target"] if program["kind"] == "script" else os.devnull, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _is_read_at_the_start(name: str) -> bool:
    """Whether an interpreter reads this variable when it starts and never again."""
    if name.startswith("PYTHON_"):
        return name in _WITH_UNDERSCORE
    return name.startswith("PYTHON") and name not in {"PYTHON", *_APPLIED_LATER}


def _python_command(first: str, rest: list[str]) -> "ProgramFields":
    found = _which(first)
    if found is None:
        raise BadRequest(f"{first}: there is no such interpreter.", "Check the path.")
    python = os.fsencode(os.path.abspath(found))
    as_typed = _other(python, rest)
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            flags.append(word)
            if word == "--check-hash-based-pycs" and rest:
                flags.append(rest.pop(0))
            continue
        # Letters may stand together, the last one with its value: -um pkg, -Wignore, -cprint().
        for place, letter in enumerate(word[1:], start=1):
            if letter not in "mcWX":
                flags.append(f"-{letter}")
                continue
            value = word[place + 1 :] or (rest.pop(0) if rest else None)
            if value is None:
                return as_typed  # Python itself says best what is missing.
            if letter == "m":
                return _python_program("module", value, rest, flags, python)
            if letter == "c":
                return _python_program("code", value, rest, flags, python)
            flags += [f"-{letter}", value]
            break
    if not rest or rest[0] == "-":
        return as_typed
    _check_script(rest[0])
    return _python_program("script", rest[0], rest[1:], flags, python)


def _python_program(
    kind: str, target: str, args: list[str], flags: list[str], python: bytes
) -> "ProgramFields":
    return {
        "kind": kind,
        "target": os.fsencode(target),
        "args": _encode(args),
        "flags": _encode(flags),
        "python": python,
    }


def _other(path: bytes, args: list[str]) -> "ProgramFields":
    return {"kind": "command", "target": path, "args": _encode(args)}


def _is_python(name: str) -> bool:
    """Whether it is called python, python3, python3.12 or the like."""
    version = name.removeprefix("python")
    return name.startswith("python") and (not version or version.replace(".", "", 1).isdigit())


def _command(first: str, rest: list[str]) -> "ProgramFields":
    found = _which(first)
    if found is None:
        if os.path.isdir(first):
            _check_script(first)
        raise BadRequest(
            f"{first}: there is no such file or command.", "Check the spelling and the directory."
        )
    return _other(os.fsencode(os.path.abspath(found)), rest)


def interpreter(python: str | None = None) -> bytes:
    """The named interpreter, else the active virtual environment's, else our own."""
    if python is not None:
        found = _which(python)
        if found is None:
            raise BadRequest(f"--python {python}: there is no such interpreter.", "Check the path.")
        return os.fsencode(os.path.abspath(found))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = os.environ.get(variable)
        candidate = os.path.join(active, "bin", "python") if active else ""
        if candidate and os.access(candidate, os.X_OK):
            return os.fsencode(candidate)
    return os.fsencode(sys.executable)


def _check_script(path: str) -> None:
    """Refuse what Python cannot run, before the broker is asked."""
    if os.path.isdir(path):
        if not _has_main(path):
            raise BadRequest(f"{path} is a directory without a __main__.py.", "Name a script.")
        return
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise BadRequest(
            f"{path}: there is no such file.", "Check the spelling and the directory."
        ) from None
    except OSError as error:
        raise BadRequest(
            f"{path} cannot be read: {error.strerror}.", "Check its permissions."
        ) from None
    archive = head.startswith(b"PK\x03\x04") or path.endswith(".pyc")
    if b"\0" in head and not archive and not os.access(path, os.X_OK):
        raise BadRequest(
            f"{path} is not a Python program.",
            "Name a script, or write `sublet run -- COMMAND` for another program.",
        )


def _has_main(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "__main__.py"))


def _is_other_executable(path: str) -> bool:
    """Whether it is a binary, or a script whose first line names another interpreter."""
    if path.endswith(_PYTHON_ENDINGS) or not os.path.isfile(path):
        return False
    if not os.access(path, os.R_OK | os.X_OK):
        return False
    first = _first_line(path)
    return b"\0" in first or _names_another(first)


def _check_language(path: str) -> None:
    """Refuse a shell script without execute permission: Python would only raise SyntaxError."""
    if path.endswith(_PYTHON_ENDINGS) or not os.path.isfile(path):
        return
    if _names_another(first := _first_line(path)):
        runs_it = " ".join(os.fsdecode(first[2:]).split())
        raise BadRequest(
            f"{path} is no Python program, and may not be executed.",
            f"Write `chmod +x {path}`, or name what runs it: `sublet run {runs_it} {path}`.",
        )


def _first_line(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.readline(256)


def _names_another(first: bytes) -> bool:
    """Whether a script's first line names an interpreter other than Python."""
    return first.startswith(b"#!") and b"python" not in first and bool(first[2:].split())


def _which(command: str) -> str | None:
    import shutil  # Not free, and a script needs none of it.

    return shutil.which(command)


def _encode(words: list[str]) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, words))
