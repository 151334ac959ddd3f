"""How large a lease is: from what was asked, and from what earlier runs have shown."""

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.memory import Auto, Exactly, Grow, MemoryAsk, Share
from sublet.errors import BadRequest, TooLarge
from sublet.units import MiB, format_bytes

SMALLEST = 16 * MiB
"""TensorFlow's runtime does not start in less."""
MARGIN = 1.2
FLOOR = 32 * MiB
"""An `auto` lease is never smaller: a program that used little today may use a little more."""
DEFAULT_SHARE = 0.25
"""What `auto` takes of the device for a program that was never measured."""


class Evidence(Struct, frozen=True):
    """What earlier runs of a program have shown on one kind of device."""

    peak: int | None = None
    """The most that TensorFlow's allocator held, in the runs that count."""
    runs: int = 0
    same_arguments: bool = True
    outside: int | None = None
    """What its process added to the machine beside that pool."""
    failed_at: int = 0
    """The largest ceiling that was too small."""


class Size(Struct, frozen=True):
    """A ceiling, and where it comes from."""

    ceiling: int
    basis: str


def size(
    ask: MemoryAsk, device: Device, free: int, ever: int, evidence: Evidence, least: int = 0
) -> Size | None:
    """The ceiling for a job on a device that can give it `free` now, and `ever` when empty.

    None if what is free is too little. `least` is what a retry needs at the least.
    """
    match ask:
        case Exactly(bytes=wanted):
            chosen = Size(wanted, "as asked")
        case Share(share=share):
            chosen = Size(int(device.capacity * share), f"{ask} of {device.id}")
        case Grow():
            chosen = Size(free, "all that was free")
        case Auto():
            chosen = _learned(device, ever, evidence)
    if least > chosen.ceiling:
        chosen = Size(least, "larger than the attempt that failed")
    ceiling = chosen.ceiling // MiB * MiB
    return Size(ceiling, chosen.basis) if SMALLEST <= ceiling <= free else None


def _learned(device: Device, ever: int, evidence: Evidence) -> Size:
    """What earlier runs suggest; never more than the device could give."""
    if evidence.peak is None and not evidence.failed_at:
        share = min(int(device.capacity * DEFAULT_SHARE), ever)
        return Size(share, f"default, {DEFAULT_SHARE:.0%} of {device.id}: no earlier run")
    known = with_margin(evidence.peak or 0)
    enough = min(max(known, after_failure(evidence.failed_at, 0, None), FLOOR), ever)
    if not evidence.runs:
        return Size(enough, f"{format_bytes(evidence.failed_at)} was too little before")
    runs = f"{evidence.runs} earlier run" + ("" if evidence.runs == 1 else "s")
    others = "" if evidence.same_arguments else " with other arguments"
    return Size(enough, f"peak of {runs}{others}, and a margin")


def with_margin(peak: int) -> int:
    """A ceiling in which a program with this peak runs again."""
    return round_up(int(peak * MARGIN) + 8 * MiB)


def after_failure(ceiling: int, peak: int, asked: int | None) -> int:
    """A ceiling worth trying after this one was too small.

    The allocator gives a large piece all of a free chunk that is not twice its size, so what was
    asked counts double.
    """
    if not ceiling:
        return 0
    return max(round_up(int(ceiling * 1.5)), with_margin(peak + 2 * (asked or 0)))


def round_up(amount: int) -> int:
    """To whole MiB, the unit in which TensorFlow counts."""
    return -(-amount // MiB) * MiB


def check(ask: MemoryAsk, device: Device, most: int) -> None:
    """Refuse what this device could never give, even with nobody else on it."""
    match ask:
        case Exactly(bytes=wanted):
            pass
        case Share(share=share):
            wanted = int(device.capacity * share)
        case _:
            wanted = SMALLEST
    if wanted < SMALLEST:
        raise BadRequest(
            f"{format_bytes(wanted)} is too little: TensorFlow needs {format_bytes(SMALLEST)} "
            "to start.",
            f"Ask for --memory {format_bytes(SMALLEST).replace(' ', '')} or more.",
        )
    if wanted > most:
        raise TooLarge(
            f"{format_bytes(wanted)} will never fit on {device.id}: it has "
            f"{format_bytes(device.capacity)}, of which one program can be given "
            f"{format_bytes(max(most, 0))}.",
            _remedy(device, most),
        )


def _remedy(device: Device, most: int) -> str:
    possible = max(most // MiB, 0)
    if possible * MiB < SMALLEST:
        more = "raise SUBLET_CPU_MEMORY" if device.kind == "cpu" else "use another device"
        return f"Too little is left on {device.id} for any program: {more}."
    return f"Ask for at most --memory {possible}MiB, or use `grow` or `auto`."
