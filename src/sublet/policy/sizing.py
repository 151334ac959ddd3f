"""How large a lease is: from what was asked, and from what earlier runs have shown.

A ceiling must be above the peak for three reasons. The next run may need more than the last: on
two processors the same program's peak varied by up to 15 % either way, as operations overlap
differently. The allocator needs room around the pieces: it gives a piece all of a free chunk that
is not twice its size. And TensorFlow counts in whole MiB. Where little is known, and for small
programs, a ceiling is generous: a few MiB of a large device are worth no death.
"""

from math import sqrt

from msgspec import Struct

from sublet.domain.device import Device
from sublet.domain.memory import Auto, Between, Exactly, Grow, MemoryAsk, Share
from sublet.errors import BadRequest, TooLarge
from sublet.units import MiB, format_bytes, written_bytes

SMALLEST = 16 * MiB
"""Less is never given. TensorFlow starts in 1 MiB, but in a few MiB one piece more or less decides:
with 3 MiB, programs that hold 2 to 3 MiB waited for memory or died."""
DEFAULT_SHARE = 0.25
"""What `auto` takes of the device for a program of which little is known."""
FIXED_SHARE = 0.5
"""What it takes where the lease cannot grow."""
IDLE_SHARE = 0.02
"""What it takes for one that has not used TensorFlow so far."""
CUT = 128 * MiB
"""TensorFlow's allocator cuts a free chunk to size if so much is left over; else the piece gets all
of it. A lease with so much more than its program needs wastes nothing."""
_SPARE_SHARE = 1 / 64
"""The least that is added to a peak: so much, or such a share of a small device."""
FRAGMENTS = 0.08
"""What the allocator needs beyond the largest peak that was seen, as a share of it."""

_USUAL = 0.067
"""How far the peaks of one program usually lie apart, as a share: believed before any was seen. It
makes a quarter more than the peak after one run. With a fifth more, one of 78 runs under such a
lease died (13 programs, six runs each)."""
_USUAL_WEIGHT = 4
"""That belief counts as much as so many runs."""
_MOST = 1 << 50


class Evidence(Struct, frozen=True):
    """What earlier runs of a program have shown on one kind of device, in sum."""

    peak: int | None = None
    """The most that TensorFlow's allocator held in the runs that count, or will hold by a
    forecast from them. None where no run says what the program needs."""
    runs: int = 0
    same_arguments: bool = True
    outside: int | None = None
    """What its process added to the machine beside that pool."""
    failed_at: int = 0
    """The largest ceiling that was too small, where no larger one was enough."""
    margin: float | None = None
    """What to add to the peak, as a share of it; None for so many runs that all had this peak. With
    0 the peak is a ceiling that was enough again and again, and nothing is added."""
    basis: str = ""
    """Where the peak comes from, in words; empty for the largest of the runs."""
    enough: int = 0
    """A ceiling that was just enough for a good run: the next one is not below it."""
    at_least: int = 0
    """The most that runs were seen to hold which say little, such as one that failed."""
    idle: bool = False
    """Its runs came to a good end and never started TensorFlow."""


class Size(Struct, frozen=True):
    """A ceiling, and where it comes from."""

    ceiling: int
    basis: str
    roomy: bool = False
    """Sized by a measured peak, with room in which its allocator wastes nothing."""
    most: int = 0
    """What it may be raised to while its program runs; 0 if never."""


def size(
    ask: MemoryAsk,
    device: Device,
    free: int,
    ever: int,
    evidence: Evidence,
    least: int = 0,
    fixed: bool = False,
    overhead: int = 0,
) -> Size | None:
    """The ceiling for a job on a device that can give it `free` now, and `ever` when empty.

    None if what is free is too little. `least` is what a retry needs at the least. A `fixed` lease
    cannot grow, so one for a program of which nothing is known is larger. `overhead` is what the
    process itself costs there.
    """
    match ask:
        case Exactly(bytes=wanted, total=total):
            chosen = Size(wanted - overhead * total, f"as asked{', in total' * total}")
        case Share(share=share, total=total):
            wanted = int(device.capacity * share) - overhead * total
            chosen = Size(wanted, f"{ask} of {device.id}")
        case Between(floor=floor):
            chosen = Size(floor, f"as asked, {ask}")
        case Grow() | Auto() if fixed:
            chosen = _learned_fixed(device, ever, evidence)
        case Grow():
            chosen = _small(device, ever, evidence)
        case Auto():
            chosen = _learned(device, ever, evidence)
    if least > chosen.ceiling:
        chosen = Size(least, "larger than the attempt that failed")
    ceiling = chosen.ceiling // MiB * MiB
    if not SMALLEST <= ceiling <= free:
        return None
    most = 0 if fixed else _most(ask, ever)
    return Size(ceiling, chosen.basis, chosen.roomy, most if most > ceiling else 0)


def _most(ask: MemoryAsk, ever: int) -> int:
    """What a lease may be raised to where the device lets it: what the user has said is hard."""
    match ask:
        case Exactly() | Share():
            return 0
        case Between(most=most):
            return min(most, ever) // MiB * MiB
        case Grow() | Auto():
            return ever // MiB * MiB


def _small(device: Device, ever: int, evidence: Evidence) -> Size:
    """What `grow` begins with: what is known to be needed, else next to nothing."""
    if evidence.peak is not None or evidence.failed_at:
        return _learned(device, ever, evidence)
    small = max(int(device.capacity * IDLE_SHARE), SMALLEST)
    return Size(min(small, ever), f"{IDLE_SHARE:.0%} of {device.id}, and more as it needs it")


def _learned_fixed(device: Device, ever: int, evidence: Evidence) -> Size:
    """The same for a lease that cannot grow."""
    learned = _learned(device, ever, evidence)
    half = min(int(device.capacity * FIXED_SHARE), ever)
    if evidence.peak is not None or learned.ceiling >= half:
        return learned
    return Size(half, f"default, {FIXED_SHARE:.0%} of {device.id}: it cannot grow")


def _learned(device: Device, ever: int, evidence: Evidence) -> Size:
    """What earlier runs suggest; never more than the device could give."""
    wanted = learned_ceiling(evidence, device.capacity)
    ceiling = min(wanted, ever)
    if evidence.failed_at:
        return Size(ceiling, f"{format_bytes(evidence.failed_at)} was too little before")
    if evidence.peak is not None:
        roomy = ceiling >= evidence.peak + CUT
        return Size(ceiling, f"{evidence.basis or _words(evidence)}, and a margin", roomy)
    if evidence.idle:
        return Size(ceiling, "earlier runs did not use TensorFlow")
    if evidence.at_least and wanted > int(device.capacity * DEFAULT_SHARE):
        held = format_bytes(evidence.at_least)
        return Size(ceiling, f"an earlier run held {held}, and a margin")
    why = "no usable earlier run" if evidence.at_least else "no earlier run"
    return Size(ceiling, f"default, {DEFAULT_SHARE:.0%} of {device.id}: {why}")


def _words(evidence: Evidence) -> str:
    runs = f"{evidence.runs} earlier run" + ("" if evidence.runs == 1 else "s")
    return f"peak of {runs}" + ("" if evidence.same_arguments else " with other arguments")


def learned_ceiling(evidence: Evidence, capacity: int) -> int:
    """What `auto` asks for on a device of this capacity, free or not."""
    share = int(capacity * DEFAULT_SHARE)
    seen = with_margin(evidence.at_least) if evidence.at_least else 0
    if evidence.peak is None:
        known = int(capacity * IDLE_SHARE) if evidence.idle else max(share, seen)
    else:
        known = max(ceiling_for(evidence, capacity), round_up(evidence.at_least))
    # After a failure of which nothing more is known, no small steps: each costs a run.
    again = max(2 * evidence.failed_at, share if evidence.peak is None else 0)
    return max(known, again if evidence.failed_at else 0, evidence.enough, SMALLEST)


def ceiling_for(evidence: Evidence, capacity: int) -> int:
    """The ceiling that the measured peak asks for; 0 where none was measured."""
    if evidence.peak is None:
        return 0
    margin = doubt(evidence.runs) if evidence.margin is None else evidence.margin
    if margin == 0:
        return max(round_up(evidence.peak), evidence.enough)
    generous = round_up(evidence.peak + spare(capacity))
    return max(with_margin(evidence.peak, margin), generous, evidence.enough)


def spare(capacity: int) -> int:
    """The least that is added to a peak on a device of this capacity."""
    return min(CUT, int(capacity * _SPARE_SHARE))


def with_margin(peak: int, margin: float | None = None) -> int:
    """A ceiling in which a program with this peak runs again; by default, for a peak seen once."""
    share = doubt(1) if margin is None else margin
    return round_up(min(int(peak * (1 + max(share, FRAGMENTS))), _MOST) + 1)


def doubt(runs: int, spread: float = _USUAL) -> float:
    """How far above the typical peak the next one may lie, as a share of it.

    The upper end of a prediction interval (97.5 %, Student's t) from so many runs with this
    spread, to which the usual spread is added with the weight of a few runs: wide after one run,
    and narrower the more runs there are and the closer they lie together.
    """
    runs = max(1, runs)
    freedom = _USUAL_WEIGHT + runs - 1
    variance = (_USUAL_WEIGHT * _USUAL**2 + (runs - 1) * spread**2) / freedom
    return _student(freedom) * sqrt(variance * (1 + 1 / runs))


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by its expansion around the normal one."""
    return 1.96 + 2.372 / freedom + 2.823 / freedom**2


def after_failure(ceiling: int, peak: int, asked: int | None) -> int:
    """A ceiling worth trying after this one was too small, when that is what the user asked for.

    The allocator gives a large piece all of a free chunk that is not twice its size, so what was
    asked counts double.
    """
    if not ceiling:
        return 0
    return max(round_up(int(ceiling * 1.5)), with_margin(peak + 2 * (asked or 0)))


def round_up(amount: int) -> int:
    """To whole MiB, the unit in which TensorFlow counts."""
    return -(-amount // MiB) * MiB


def check(ask: MemoryAsk, device: Device, most: int, overhead: int = 0) -> None:
    """Refuse what this device could never give, even with nobody else on it."""
    match ask:
        case Exactly(bytes=wanted, total=total):
            wanted -= overhead * total
        case Share(share=share, total=total):
            wanted = int(device.capacity * share) - overhead * total
        case Between(floor=floor):
            wanted = floor
        case _:
            wanted = SMALLEST
    if wanted < SMALLEST:
        beside = overhead if isinstance(ask, Exactly | Share) and ask.total else 0
        own = f", and the process itself takes {format_bytes(beside)} of it" if beside else ""
        raise BadRequest(
            f"{format_bytes(wanted + beside)} is too little: hardly any program runs in less than "
            f"{format_bytes(SMALLEST)}{own}.",
            f"Ask for {format_bytes(SMALLEST + beside).replace(' ', '')} or more.",
        )
    if wanted > most:
        asked, given = _apart(wanted, max(most, 0))
        raise TooLarge(
            f"{asked} will never fit on {device.id}: it has {format_bytes(device.capacity)}, of "
            f"which one program can be given {given}.",
            _remedy(device, most),
        )


def _apart(more: int, less: int) -> tuple[str, str]:
    """Two different amounts as texts that differ, too, however close they are."""
    if format_bytes(more) != format_bytes(less):
        return format_bytes(more), format_bytes(less)
    return f"{round_up(more) // MiB} MiB", f"{less // MiB} MiB"


def _remedy(device: Device, most: int) -> str:
    if most < SMALLEST:
        more = "raise SUBLET_CPU_MEMORY" if device.kind == "cpu" else "use another device"
        return f"Too little is left on {device.id} for any program: {more}."
    return f"Ask for at most {written_bytes(most, up=False)}, or for `grow` or `auto`."
