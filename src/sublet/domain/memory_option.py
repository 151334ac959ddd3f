"""What people write after `--memory`, as plain fields of a `domain.memory.MemoryAsk`.

Standard library only: a command reads it before it has loaded the rest.
"""

from sublet.errors import BadRequest

_FORMS = (
    "Write a size such as 512MiB or 2GiB, a range such as 2GiB..6GiB, a share such as 40%, "
    "`grow` or `auto`. `2GiB total` and `40% total` include what the process itself costs."
)


def read_memory(text: str) -> dict[str, str | int | float | bool]:
    """Read what a person wrote after `--memory`: the fields of a `domain.memory.MemoryAsk`."""
    if not isinstance(text, str):
        hint = 'Write memory="2GiB", "40%" or "auto".'
        raise BadRequest(f"memory={text!r} is not a string.", hint)
    word = text.strip().lower()
    if word in ("auto", "grow"):
        return {"type": word}
    if word.endswith(" total"):
        return _total(word.removesuffix(" total"), text)
    if word.endswith("%"):
        if ".." in word:
            raise BadRequest(f"memory {text!r}: a range is of sizes, not of shares.", _FORMS)
        try:
            percent = float(word[:-1])
        except ValueError:
            raise BadRequest(f"memory {text!r} is not a share.", _FORMS) from None
        if not 0 < percent <= 100:
            raise BadRequest(f"memory {text!r}: a share is above 0% and at most 100%.", _FORMS)
        return {"type": "share", "share": percent / 100}
    from sublet.units import parse_bytes  # Not free, and `auto` needs none of it.

    try:
        least, dots, most = text.strip().partition("..")
        if not dots:
            return {"type": "exactly", "bytes": parse_bytes(text)}
        floor, ceiling = parse_bytes(least), parse_bytes(most)
    except BadRequest as error:
        quoted = f'"{text.strip()}"'
        what = error.message.removeprefix(quoted) if text.strip() else f": {error.message}"
        what = what if what != error.message else f": {what}"
        raise BadRequest(f"memory {text!r}{what}", _FORMS) from None
    if floor > ceiling:
        raise BadRequest(
            f"memory {text!r} is upside down: the first size must be the smaller one.",
            f"Write {most.strip()}..{least.strip()}.",
        )
    return {"type": "between", "floor": floor, "most": ceiling}


def _total(asked: str, text: str) -> dict[str, str | int | float | bool]:
    try:
        fields = read_memory(asked)
    except BadRequest:
        fields = {"type": ""}
    if fields["type"] not in ("exactly", "share") or "total" in fields:
        raise BadRequest(f"memory {text!r}: a total is a size or a share.", _FORMS)
    return {**fields, "total": True}
