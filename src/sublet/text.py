"""Text that somebody else wrote, made fit for a terminal."""

_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Unicode's categories of what is not drawn, or moves the cursor, or turns the line around."""


def plain(text: str) -> str:
    """One line of what can be seen; everything else is replaced."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata  # Rarely needed, and not free.

    return "".join("\ufffd" if unicodedata.category(one) in _UNSEEN else one for one in text)
