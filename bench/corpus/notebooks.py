"""Notebooks as scripts."""

from sublet.doctor import notebooks


def script(text: str) -> str:
    """The code cells of a notebook, with `pass` for magics and shell commands."""
    return notebooks.read(text).text
