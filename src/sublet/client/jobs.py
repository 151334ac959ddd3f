"""Jobs by their numbers, as the broker knows them."""

from msgspec import Struct

from sublet.errors import BadRequest


class JobRow(Struct, frozen=True):
    """One job."""

    id: int
    state: str
    run: str
    attempts: int


def job(number: int) -> JobRow:
    """The job of this number; BadRequest if there is none."""
    raise BadRequest(f"There is no job {number}.", "`sublet ps` lists those there are.")
