"""Header blocks are read as RFC 7541 says, and bad ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.serving.frontend.grpc import hpack
from sublet.serving.frontend.grpc.hpack import (
    LARGEST_LIST,
    Damaged,
    Decoder,
    Headers,
    TooLong,
    encode,
)


def _decode(decoder: Decoder, block: str) -> list[str]:
    return [f"{n.decode()}: {v.decode()}" for n, v in decoder.decode(bytes.fromhex(block))]


@pytest.mark.parametrize(
    "blocks",
    [
        # Appendix C.3: without Huffman. Appendix C.4: with it.
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
)
def test_the_examples_of_the_standard(blocks: tuple[str, str, str]) -> None:
    decoder = Decoder()
    start = [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"]
    assert _decode(decoder, blocks[0]) == start
    assert _decode(decoder, blocks[1]) == [*start, "cache-control: no-cache"]
    assert _decode(decoder, blocks[2]) == [
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ]


def test_entries_leave_the_table_when_it_is_full() -> None:
    """Appendix C.6.2 begins in the same way: a table of 256 bytes that evicts."""
    decoder = Decoder()
    decoder.decode(bytes.fromhex("3fe101"))  # the table shrinks to 256 bytes
    for number in range(10):
        decoder.decode(b"\x40\x01a\x1e" + b"%030d" % number)  # 63 bytes each: four have room
    assert decoder.decode(b"\xc1")[0] == (b"a", b"%030d" % 6)
    with pytest.raises(Damaged):
        decoder.decode(b"\xc2")


def test_a_remembered_block_is_read_anew_when_the_table_has_changed() -> None:
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x01x")
    assert decoder.decode(b"\xbe") == decoder.decode(b"\xbe") == ((b"a", b"x"),)
    decoder.decode(b"\x40\x01a\x01y")
    assert decoder.decode(b"\xbe") == ((b"a", b"y"),)


def test_few_bytes_that_name_many_headers_are_refused_and_the_table_stays_right() -> None:
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x64" + b"x" * 100)
    with pytest.raises(TooLong):
        decoder.decode(b"\xbe" * LARGEST_LIST + b"\x40\x01b\x01y")
    assert decoder.decode(b"\xbe\xbf") == ((b"b", b"y"), (b"a", b"x" * 100))


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index zero
        "ff8080808080",  # a number without end
        "be",  # an entry that is not there
        "3fe21f",  # a table beyond what was allowed
        "8220",  # a table size after a header
        "400a6162",  # a text that is cut off
        "40",  # nothing follows
        "4001618fffffffffff",  # the end symbol
        "400161811c",  # padding that is no begin of the end symbol
    ],
)
def test_damaged_blocks_are_refused(block: str) -> None:
    with pytest.raises(Damaged):
        Decoder().decode(bytes.fromhex(block))


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=10))
def test_what_is_written_reads_back(headers: list[tuple[bytes, bytes]]) -> None:
    wanted: Headers = tuple(headers)
    assert Decoder().decode(encode(wanted)) == wanted


@given(st.binary())
def test_random_huffman_codes_are_text_or_refused(data: bytes) -> None:
    try:
        text = hpack.huffman_decode(data)
    except ValueError:
        text = b""
    assert len(text) <= len(data) * 8 // 5


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_random_blocks_are_read_or_refused(blocks: list[bytes]) -> None:
    decoder = Decoder()
    read = 0
    for block in blocks:
        try:
            read += len(decoder.decode(block))
        except (Damaged, TooLong):
            break
    assert read * 32 <= LARGEST_LIST * len(blocks)
