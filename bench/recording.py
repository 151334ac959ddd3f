"""Records a terminal: real commands of a private Sublet, as an SVG picture for the README.

python -m bench.recording docs/images/terminal.svg
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.sandbox import ROOT, SUBLET, Sandbox, sandbox

_WIDTH = 96
_EXAMPLES = ROOT / "examples" / "programs"
_STORY = (
    "sublet submit --memory 1GiB autoencoder.py",
    "sublet submit --memory 1200MiB resnet.py",
    "sublet run cnn.py",
    "sublet run --dry-run --memory 3GiB attention.py",
    "sublet status",
)
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
"""As Rich draws a terminal, with fonts of the reader's own instead of one that is loaded."""


def record(path: Path) -> None:
    """Run the story, and write what a terminal showed of it."""
    with sandbox() as home, open(os.devnull, "w") as nowhere:
        home.env |= {
            "SUBLET_CPU_MEMORY": "4GiB",
            "TERM": "xterm-256color",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        home.warm_up()
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True)
        for line in _STORY:
            console.print(Text(f"$ {line}", "bold"))
            shown = _run(home, line.split()[1:])
            console.print(Text.from_ansi(_plainer(shown)))
        path.write_text(console.export_svg(title="sublet", code_format=_FORMAT, unique_id="t"))


def _run(home: Sandbox, words: list[str]) -> str:
    """What a terminal is sent by a command."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _WIDTH, 0, 0))
    command = [str(SUBLET), *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=home.env, cwd=_EXAMPLES
    )
    os.close(theirs)
    heard = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # Nobody has the other end any more.
            break
        if not data:
            break
        heard += data
    os.close(ours)
    process.wait()
    return heard.decode(errors="replace")


def _plainer(text: str) -> str:
    """Lines as they stand in the end: of what was written over, the last."""
    text = text.replace(sys.prefix, "~/.venv")
    text = re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", text)  # All but colours.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(line for line in lines if line.strip()) + "\n"


if __name__ == "__main__":
    record(Path(sys.argv[1]))
