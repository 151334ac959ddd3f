"""Notebooks as scripts: the code cells in their order, without what only IPython understands."""

import json
import textwrap

_FORMS = ("!", "%", "?")


def script(text: str) -> str:
    """The code cells of a notebook, with `pass` for magics and shell commands."""
    cells = json.loads(text)["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n\n".join(_plain(source) for source in sources) + "\n"


def _plain(source: str) -> str:
    if source.lstrip().startswith("%%"):
        magic, _, rest = source.lstrip().partition("\n")
        # The body of these is Python as well.
        source = rest if magic.split()[0] in ("%%time", "%%timeit", "%%capture") else ""
    # IPython takes cells that are indented as a whole.
    return textwrap.dedent("\n".join(_line(line) for line in source.splitlines()))


def _line(line: str) -> str:
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    return f"{indent}pass" if code.startswith(_FORMS) or code.rstrip().endswith("?") else line
