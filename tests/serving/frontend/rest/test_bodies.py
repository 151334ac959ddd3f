"""Bodies in chunks, whatever way they are cut; and packed ones."""

import gzip
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.serving.frontend.rest import Limits
from sublet.serving.frontend.rest.bodies import Chunks, unpack
from sublet.serving.frontend.rest.messages import Refused

pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
cuts = st.lists(st.integers(0, 600), max_size=12)


def written(parts: list[bytes]) -> bytes:
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[a:b] for a, b in pairwise(edges)]


@given(pieces, st.binary(max_size=20), cuts)
def test_a_body_is_the_same_however_it_is_cut(
    parts: list[bytes], after: bytes, places: list[int]
) -> None:
    chunks = Chunks(Limits())
    rest = b""
    for piece in cut(written(parts) + after, places):
        rest = rest + piece if chunks.done else chunks.feed(piece)
    assert chunks.done
    assert bytes(chunks.body) == b"".join(parts)
    assert rest == after


@given(st.binary(max_size=200), cuts)
def test_any_bytes_are_taken_or_refused_alike_however_they_are_cut(
    data: bytes, places: list[int]
) -> None:
    def outcome(parts: list[bytes]) -> object:
        chunks = Chunks(Limits())
        try:
            for part in parts:
                if not chunks.done:
                    chunks.feed(part)
        except Refused as refused:
            return refused.status
        return chunks.done, bytes(chunks.body)

    assert outcome(cut(data, places)) == outcome([data])


@given(st.binary(max_size=2000))
def test_a_packed_body_comes_out_as_it_was(data: bytes) -> None:
    assert unpack(gzip.compress(data), 2000) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    try:
        body = unpack(data, 1000)
    except Refused:
        return
    assert len(body) <= 1000


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = gzip.compress(bytes(2**26), 9)
    with pytest.raises(Refused, match="larger than 16777216 bytes"):
        unpack(bomb, 2**30)


def test_a_body_of_endless_members_is_refused() -> None:
    with pytest.raises(Refused, match="more than 16384 members"):
        unpack(gzip.compress(b"") * 16_385, 2000)
