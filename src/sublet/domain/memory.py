"""How memory is asked for: a hard ceiling, a share of the device, all that is free, or learned."""

from msgspec import Struct

from sublet.errors import BadRequest
from sublet.units import format_bytes, parse_bytes


class Exactly(Struct, frozen=True, tag="exactly"):
    """A hard ceiling in bytes."""

    bytes: int

    def __str__(self) -> str:
        return format_bytes(self.bytes)


class Share(Struct, frozen=True, tag="share"):
    """A share of the device's capacity, between 0 and 1."""

    share: float

    def __str__(self) -> str:
        return f"{self.share * 100:g}%"


class Grow(Struct, frozen=True, tag="grow"):
    """All that is free at the moment of the grant."""

    def __str__(self) -> str:
        return "grow"


class Auto(Struct, frozen=True, tag="auto"):
    """Learned from earlier runs of the same program."""

    def __str__(self) -> str:
        return "auto"


MemoryAsk = Exactly | Share | Grow | Auto

_FORMS = "Write a size such as 512MiB or 2GiB, a share such as 40%, `grow` or `auto`."


def parse_memory(text: str) -> MemoryAsk:
    """Read what a person wrote after `--memory`."""
    word = text.strip().lower()
    if word == "auto":
        return Auto()
    if word == "grow":
        return Grow()
    if word.endswith("%"):
        try:
            percent = float(word[:-1])
        except ValueError:
            raise BadRequest(f"--memory {text!r} is not a share.", _FORMS) from None
        if not 0 < percent <= 100:
            raise BadRequest(f"--memory {text!r}: a share is above 0% and at most 100%.", _FORMS)
        return Share(percent / 100)
    try:
        return Exactly(parse_bytes(text))
    except BadRequest as error:
        raise BadRequest(f"--memory {text!r}: {error.message}", _FORMS) from None
