"""How memory is asked for: a hard ceiling, a share of the device, a range, or as it is needed."""

from msgspec import Struct, convert

from sublet.domain.memory_option import read_memory
from sublet.units import format_bytes


class Exactly(Struct, frozen=True, tag="exactly"):
    """A hard ceiling in bytes; with `total`, what it and the process itself take together."""

    bytes: int
    total: bool = False

    def __str__(self) -> str:
        return format_bytes(self.bytes) + " total" * self.total


class Share(Struct, frozen=True, tag="share"):
    """The same as a share of the device's capacity, between 0 and 1."""

    share: float
    total: bool = False

    def __str__(self) -> str:
        return f"{self.share * 100:g}%" + " total" * self.total


class Between(Struct, frozen=True, tag="between"):
    """A floor that is granted, and a ceiling that it may grow to while there is room."""

    floor: int
    most: int

    def __str__(self) -> str:
        return f"{format_bytes(self.floor)}..{format_bytes(self.most)}".replace(" ", "")


class Grow(Struct, frozen=True, tag="grow"):
    """As little as it can begin with, and more as it needs it."""

    def __str__(self) -> str:
        return "grow"


class Auto(Struct, frozen=True, tag="auto"):
    """Learned from earlier runs of the same program, and more if it needs more."""

    def __str__(self) -> str:
        return "auto"


MemoryAsk = Exactly | Share | Between | Grow | Auto


def parse_memory(text: str) -> MemoryAsk:
    """Read what a person wrote after `--memory`."""
    ask: MemoryAsk = convert(read_memory(text), MemoryAsk)
    return ask
