"""Notebooks as scripts: the code cells in their order, without what only IPython understands."""

import json
import re
from typing import NamedTuple

_FORMS = ("!", "%", "?")
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture")
_SHELL = re.compile(r"(?:ls|cd|cat|mkdir|rm|cp|mv|pip|conda)(?:\s+[\w./~*-]+)+\s*")
"""What IPython takes for a command without a sign before it."""
_HELP = re.compile(r"[\w.*%\[\]]+\?\??")
_ENV = re.compile(r"%(?:set_)?env\s+(\w+)(?:\s*=\s*|\s+)(\S.*)")


class Script(NamedTuple):
    """A notebook's code in one text, and the cell and line of each of its lines."""

    text: str
    lines: tuple[tuple[int, int], ...]


def read(text: str) -> Script:
    """The code cells of a notebook; `pass` for magics and shell commands. Raises ValueError for
    what is no notebook."""
    document = json.loads(text)
    try:
        cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (KeyError, TypeError) as error:
        raise ValueError("it has no cells") from error
    code: list[str] = []
    lines: list[tuple[int, int]] = []
    for number, source in enumerate(sources, start=1):
        plain = _plain(source).split("\n")
        code += [*plain, ""]
        lines += [(number, at) for at in range(1, len(plain) + 2)]
    return Script("\n".join(code) + "\n", tuple(lines))


def _plain(source: str) -> str:
    if source.lstrip().startswith("%%"):
        magic, _, rest = source.lstrip().partition("\n")
        # The body of these is Python as well.
        source = "\n" + rest if magic.split()[0] in _PYTHON_CELLS else ""
    lines, shell = [], False
    for line in source.splitlines():
        # A command of the shell goes on after a backslash.
        lines.append("pass" if shell else _line(line))
        shell = (shell or line.lstrip().startswith("!")) and line.endswith("\\")
    return _dedent(lines)


def _dedent(lines: list[str]) -> str:
    """IPython takes cells that are indented as a whole, by their first line."""
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    if indent:
        lines = [line.removeprefix(indent) for line in lines]
    return "\n".join(lines)


def _line(line: str) -> str:
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    if (variable := _ENV.fullmatch(code.rstrip())) is not None:
        name, value = variable[1], variable[2].strip("'\"")
        return f"{indent}import os; os.environ[{name!r}] = {value!r}"
    if code.startswith(_FORMS) or _HELP.fullmatch(code.rstrip()) or _SHELL.fullmatch(code):
        return f"{indent}pass"
    return line
