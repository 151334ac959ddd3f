"""The Huffman code of HPACK (RFC 7541, appendix B): reading only; we write plain text."""

from functools import cache

# The code is canonical: it follows from the length of each symbol's code. The last one is the end.
_LENGTHS = (
    "13,23,28,28,28,28,28,28,28,24,30,28,28,30,28,28,28,28,28,28,28,28,30,28,28,28,28,28,28,28,28,28,"
    "6,10,10,12,13,6,8,11,10,10,8,11,8,6,6,6,5,5,5,6,6,6,6,6,6,6,7,8,15,6,12,10,"
    "13,6,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,8,7,8,13,19,13,14,6,"
    "15,5,6,5,6,5,6,6,6,5,7,7,6,6,6,5,6,7,6,5,5,6,7,7,7,7,7,15,11,14,13,28,"
    "20,22,20,20,22,22,22,23,22,23,23,23,23,23,24,23,24,24,22,23,24,23,23,23,23,21,22,23,22,23,23,24,"
    "22,21,20,22,22,23,23,21,23,22,22,24,21,22,23,23,21,21,22,21,23,22,23,23,20,22,22,22,23,22,22,23,"
    "26,26,20,19,22,23,22,25,26,26,26,27,27,26,24,25,19,21,26,27,27,26,27,24,21,21,26,26,28,27,27,27,"
    "20,24,20,21,22,21,21,23,22,22,25,25,24,24,26,23,26,27,26,26,27,27,27,27,27,28,27,27,27,27,27,26,"
    "30"
)
_END = 256

Code = tuple[int, int]
"""A prefix of the code: its length and its bits."""


def _codes() -> dict[Code, int]:
    lengths = [int(length) for length in _LENGTHS.split(",")]
    codes: dict[Code, int] = {}
    code = last = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - last
        codes[length, code] = symbol
        code += 1
        last = length
    return codes


_SYMBOLS = _codes()


def decode(data: bytes) -> bytes:
    """The text of a Huffman code; raises ValueError for what is none."""
    out = []
    prefix: Code = (0, 0)
    for byte in data:
        prefix, text = _step(prefix, byte)
        out.append(text)
    length, bits = prefix
    # What is left over is padding: the begin of the end's code, which is all ones.
    if length > 7 or bits != (1 << length) - 1:
        raise ValueError("wrong padding")
    return b"".join(out)


@cache
def _step(prefix: Code, byte: int) -> tuple[Code, bytes]:
    """What a byte adds after a prefix. There are few prefixes, so each step is learned once."""
    length, bits = prefix
    out = bytearray()
    for shift in range(7, -1, -1):
        length, bits = length + 1, bits << 1 | byte >> shift & 1
        symbol = _SYMBOLS.get((length, bits))
        if symbol == _END:
            raise ValueError("the end within a text")
        if symbol is not None:
            out.append(symbol)
            length = bits = 0
    return (length, bits), bytes(out)
