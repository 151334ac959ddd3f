"""Rows of jobs whose estimates go on while no news of them comes."""

from collections.abc import Mapping

from msgspec.structs import replace

from sublet.wire.rows import JobRow


class LiveRows:
    """The rows of the last view, each with the moment at which it came."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[JobRow, float]] = {}

    def take(self, rows: Mapping[int, JobRow], now: float) -> None:
        """These are the rows from now on; those that are the same as before came then."""
        before = self._rows
        self._rows = {
            number: known
            if (known := before.get(number)) is not None and known[0] is row
            else (row, now)
            for number, row in rows.items()
        }

    def at(self, now: float) -> list[JobRow]:
        """The rows with what is left of their spans."""
        return [_later(row, now - came) for row, came in self._rows.values()]


def _later(row: JobRow, seconds: float) -> JobRow:
    if row.starts_in is None and row.ends_in is None:
        return row
    starts_in, ends_in = _less(row.starts_in, seconds), _less(row.ends_in, seconds)
    return replace(row, starts_in=starts_in, ends_in=ends_in)


def _less(span: float | None, seconds: float) -> float | None:
    return None if span is None else max(0.0, span - seconds)
