"""Lines that a program has written, as they can be shown to anybody."""

import re

from sublet.text import plain

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""What moves a terminal's cursor, colours its text or sets its title."""
_LONGEST_LINE = 4000


def shown_line(line: bytes) -> str:
    """A line as a terminal would leave it: without escapes, after the last carriage return."""
    text = line[: 16 * _LONGEST_LINE].decode(errors="replace")
    text = _ESCAPES.sub("", text).rstrip("\r").rpartition("\r")[2]
    if len(text) > _LONGEST_LINE:
        text = text[:_LONGEST_LINE] + " … (longer)"
    return plain(text.expandtabs())
