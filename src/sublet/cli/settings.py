"""What options are if they are not typed: from variables, the project's file and the user's.

Each comes before the next one; in a file, the table of a command comes before the rest:

    variables       SUBLET_MEMORY=2GiB
    the project's   [tool.sublet] in the nearest pyproject.toml that has it
    the user's      ~/.config/sublet/config.toml, or the file that SUBLET_CONFIG names

`sublet run` looks here before it sends its job: nothing is loaded unless there is a file to read.
"""

import os

from sublet.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Value = str | bool
    Setting = tuple[Value, str]
    """A value, and the file or variable that says so."""

_TEXT, _NUMBER, _SWITCH = "a text", "a number", "true or false"
_KINDS = {
    "memory": _TEXT,
    "device": _TEXT,
    "gpus": _NUMBER,
    "cpus": _NUMBER,
    "on_oom": _TEXT,
    "python": _TEXT,
    "cold": _SWITCH,
    "fence": _SWITCH,
    "leave_children": _SWITCH,
    "quiet": _SWITCH,
    "notify": _TEXT,
    "on": _TEXT,
    "priority": _TEXT,
    "time": _TEXT,
    "grace": _TEXT,
    "retries": _NUMBER,
}
"""Options that can be set, and what their values are."""
_ALL = ("memory", "device", "cpus", "python", "cold", "fence")
_JOBS = (*_ALL, "on", "gpus", "on_oom", "leave_children", "notify")
VERBS = {
    "run": (*_JOBS, "quiet"),
    "submit": (*_JOBS, "priority", "time", "grace", "retries"),
    "launch": (*_ALL, "quiet", "time"),
}
"""The options that each command takes from here."""
_USERS = ("python", "notify", "on")
"""What a project must not say: it names what is run, or where one's variables go, and projects are
other people's."""
_SWITCHES = {"1": True, "on": True, "true": True, "yes": True}
_SWITCHES |= {"0": False, "off": False, "false": False, "no": False}


def values(verb: str) -> "dict[str, Value]":
    """The options of a command that are set somewhere."""
    return {name: value for name, (value, _) in settings(verb).items()}


def settings(verb: str) -> "dict[str, Setting]":
    """The same, with who says so. Raises BadRequest if a file or a variable says what cannot be."""
    found: dict[str, Setting] = {}
    for path, table in _tables():
        shared = {name: value for name, value in table.items() if name not in VERBS}
        for name, value in (*_checked(path, shared), *_checked(path, table.get(verb, {}))):
            found[name] = value, path
    for name, kind in _KINDS.items():
        variable = f"SUBLET_{name.upper()}"
        if (text := os.environ.get(variable)) is not None and text.strip():
            found[name] = _read(kind, text.strip(), variable), variable
    return {name: found[name] for name in VERBS[verb] if name in found}


def user_file() -> str:
    """Where the user's settings are, if there are any."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.environ.get("SUBLET_CONFIG") or os.path.join(home, "sublet", "config.toml")


def project_file() -> str | None:
    """The nearest file above the working directory that has settings for Sublet."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        return None
    while True:
        path = os.path.join(directory, "pyproject.toml")
        if b"[tool.sublet" in (_content(path) or b""):
            return path
        if directory == os.path.dirname(directory):
            return None
        directory = os.path.dirname(directory)


def _tables() -> "Iterator[tuple[str, dict[str, object]]]":
    """The files that are there, and what they say; what comes later counts more."""
    path = user_file()
    if (content := _content(path)) is not None:
        yield path, _parsed(path, content)
    elif os.environ.get("SUBLET_CONFIG"):
        raise BadRequest(
            f"SUBLET_CONFIG names {path}, which cannot be read.", "Correct it, or unset it."
        )
    project = project_file()
    if project is not None:
        document = _parsed(project, _content(project) or b"")
        tool = document.get("tool")
        table = tool.get("sublet", {}) if isinstance(tool, dict) else {}
        for name in _USERS:
            if name in table or any(name in one for one in table.values() if type(one) is dict):
                raise BadRequest(
                    f"{project} sets {name!r}, which a project cannot.",
                    f"Set it in {user_file()}, or type --{name}.",
                )
        yield project, table


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _parsed(path: str, content: bytes) -> "dict[str, object]":
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"{path} is not TOML: {wrong}.", "Correct it.") from None


def _checked(path: str, table: object) -> "Iterator[tuple[str, Value]]":
    """What a table says, under the names that commands use."""
    if not isinstance(table, dict):
        raise BadRequest(f"{path}: {table!r} is not a table.", "Write [submit] above its settings.")
    for written, value in table.items():
        name = written.replace("-", "_")
        if name not in _KINDS:
            raise BadRequest(f"{path}: there is no setting {written!r}.", _instead(written))
        if isinstance(value, bool) is not (_KINDS[name] is _SWITCH) or not isinstance(
            value, int | str
        ):
            raise BadRequest(f"{path}: {written} = {value!r} is not {_KINDS[name]}.", "Correct it.")
        yield name, value if isinstance(value, bool) else str(value)


def _read(kind: str, text: str, variable: str) -> "Value":
    if kind is not _SWITCH:
        return text
    if text.lower() not in _SWITCHES:
        raise BadRequest(f"{variable}={text} is neither on nor off.", "Write 1 or 0.")
    return _SWITCHES[text.lower()]


def _instead(written: str) -> str:
    import difflib

    names = [name.replace("_", "-") for name in _KINDS]
    alike = difflib.get_close_matches(written.replace("_", "-"), names, 1)
    return f"Did you mean {alike[0]!r}?" if alike else "`sublet config` lists the settings."
