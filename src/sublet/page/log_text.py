"""The output of a job as lines of text that are safe to show: a piece from a position on."""

from pathlib import Path

from msgspec import Struct

from sublet.client.log_lines import shown_line
from sublet.client.logs import Log, Stream, files
from sublet.keeper.output_files import Gap
from sublet.units import format_bytes

_TAIL = 500
"""Lines that are shown of what is there already."""
_MOST = 1 << 19
"""Bytes in one piece."""


class LogPiece(Struct, frozen=True):
    """Lines of an attempt's output, and where the next piece begins."""

    attempt: int
    position: int
    lines: tuple[str, ...]
    open_line: str = ""
    """The last line, if it has no end yet; it comes again with the next piece."""
    stream: Stream = "both"
    more: bool = False
    """Whether there is more already."""


def read_piece(
    logs: Path, job: int, attempt: int, stream: Stream, position: int | None
) -> LogPiece | None:
    """Lines from a position on, or the last ones; None if the attempt has no such output."""
    path = files(logs, f"{job}.{attempt}").get(stream)
    if path is None:
        return None
    with Log.open(path) as log:
        if position is None:
            log.seek_lines(_TAIL)
        else:
            log.position = position
        return _piece(log, attempt, stream)


def _piece(log: Log, attempt: int, stream: Stream) -> LogPiece:
    lines: list[str] = []
    begin, rest, taken = log.position, b"", 0
    for piece in log.read():
        if isinstance(piece, Gap):
            lines.append(f"… {format_bytes(piece.size)} left out …")
            begin, rest = log.position, b""
            continue
        taken += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        lines += map(shown_line, whole)
        begin = log.position - len(rest)
        if taken >= _MOST:
            return LogPiece(attempt, begin, tuple(lines), "", stream, True)
    return LogPiece(attempt, begin, tuple(lines), shown_line(rest), stream)
