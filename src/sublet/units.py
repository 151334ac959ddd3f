"""Parses and formats amounts of bytes and spans of time.

A percentage is not an amount until a device is known, so it is not read here.
"""

import re
from decimal import Decimal

from sublet.errors import BadRequest

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB
PiB = 1024 * TiB

LARGEST = PiB

# A bare letter means the binary unit, as in docker, java and free; only "GB" and its like are
# decimal, because that is what the letters say.
_UNITS = {
    "b": 1,
    **dict.fromkeys(("k", "ki", "kib"), KiB),
    **dict.fromkeys(("m", "mi", "mib"), MiB),
    **dict.fromkeys(("g", "gi", "gib"), GiB),
    **dict.fromkeys(("t", "ti", "tib"), TiB),
    **dict.fromkeys(("p", "pi", "pib"), PiB),
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
}
_NAMES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AMOUNT = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)")
_LONGEST = 40
_EXAMPLE = "Write a number and a unit, such as 2GiB, 512MiB or 1.5g."


def parse_bytes(text: str) -> int:
    """The bytes that `text` names, such as "2GiB", "512 MiB", "1.5g", "800M" or "2GB".

    At least one byte and at most a pebibyte; anything else is a BadRequest that says what to write.
    """
    written = text.strip()
    if not written:
        raise BadRequest("The amount of memory is empty.", _EXAMPLE)
    match = _AMOUNT.fullmatch(written.lower()) if len(written) <= _LONGEST else None
    if match is None:
        raise BadRequest(f"{_quoted(written)} is not an amount of memory.", _EXAMPLE)
    sign, number, unit = match.groups()
    if unit and unit not in _UNITS:
        raise BadRequest(
            f"{_quoted(written)} has no known unit: {_quoted(unit)}.",
            "Use KiB, MiB, GiB or TiB (or kB, MB, GB, TB for powers of ten), such as 2GiB.",
        )
    if Decimal(number) == 0:
        raise BadRequest("An amount of memory must be more than 0.", _EXAMPLE)
    if sign == "-":
        raise BadRequest(
            f"{_quoted(written)} is negative; memory must be more than 0.", "Leave the sign out."
        )
    if not unit:
        raise BadRequest(
            f"{_quoted(written)} has no unit.",
            f"Say which one: {number}MiB, {number}GiB, or {number}B for bytes.",
        )
    amount = Decimal(number) * _UNITS[unit]
    if amount < 1:
        raise BadRequest(f"{_quoted(written)} is less than one byte.", _EXAMPLE)
    if amount > LARGEST:
        raise BadRequest(
            f"{_quoted(written)} is more than any device has.",
            f"The most is {format_bytes(LARGEST)}. {_EXAMPLE}",
        )
    return int(amount)


def format_bytes(n: int) -> str:
    """`n` bytes in the binary unit that keeps it short: "213 MiB", "23.6 GiB", "0 B".

    At most eight characters (a minus sign not counted), below 1000 PiB.
    """
    sign, value, power = "-" if n < 0 else "", float(abs(n)), 0
    # Rounded first: 1023.7 MiB would read as 1024 MiB, and is 1.0 GiB.
    while round(value) >= 1024 and power < len(_NAMES) - 1:
        value, power = value / 1024, power + 1
    digits = 1 if power and round(value, 1) < 100 else 0
    return f"{sign}{value:.{digits}f} {_NAMES[power]}"


def written_bytes(n: int, up: bool = True) -> str:
    """About `n` bytes as people write them, such as "467MiB" or "5.9GiB", for a command to try.

    Rounded up, so that it is enough, or down, so that there is that much.
    """
    tenths = n >= GiB
    count, unit = n * (10 if tenths else 1), GiB if tenths else MiB
    count = -(-count // unit) if up else count // unit
    if not tenths:
        return f"{count}MiB"
    return f"{count // 10}.{count % 10}GiB".replace(".0GiB", "GiB")


def format_seconds(seconds: float) -> str:
    """A span of time: "45 ms", "4.1 s", "12 min 3 s", "2 h 05 min".

    A negative span, which a clock that was set back can give, reads as none.
    """
    seconds = max(0.0, seconds)
    if (milliseconds := round(seconds * 1000)) < 1000:
        return f"{milliseconds} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if (whole := round(seconds)) < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


_SPANS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]+)\s*")


def parse_seconds(text: str) -> float:
    """The seconds that `text` names, such as "90s", "45min", "2h", "1h30m" or "1.5d"."""
    written = text.strip().lower()
    parts = _SPAN.findall(written) if len(written) <= _LONGEST else []
    whole = "".join(match[0] for match in _SPAN.finditer(written)) == written
    if not parts or not whole or any(unit not in _SPANS for _, unit in parts):
        raise BadRequest(
            f"{_quoted(text)} is not a span of time.",
            "Write a number and a unit, such as 90s, 45min, 2h or 1h30m.",
        )
    return sum(float(number) * _SPANS[unit] for number, unit in parts)


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= _LONGEST else f'"{text[: _LONGEST - 1]}…"'


def shorten(text: str, width: int) -> str:
    """The text in at most `width` characters. It is cut in the middle: names that begin alike often
    differ at the end."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
