"""Makes text that somebody else wrote safe for a terminal."""

_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Unicode categories of characters that are not drawn, move the cursor or change the direction."""


def plain(text: str) -> str:
    """The text in one line, with every character that cannot be seen replaced."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata  # Rarely needed, and not free.

    return "".join("\ufffd" if unicodedata.category(one) in _UNSEEN else one for one in text)


_ASCII = {
    **dict.fromkeys("█▇▆▅■", "#"),
    **dict.fromkeys("▄▃▂▁", "_"),
    **dict.fromkeys("│┃▏▕▎▌▐", "|"),
    **dict.fromkeys("─━–▔▀", "-"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    "▓": "+",
    "▒": "=",
    "░": ":",
    "·": ".",
    "…": "~",
    "→": ">",
    "↑": "^",
    "↓": "v",
}


def in_ascii(text: str) -> str:
    """The text with another sign for each that ASCII lacks: one that looks alike, or `?`."""
    return "".join(one if one.isascii() else _ASCII.get(one, "?") for one in text)
