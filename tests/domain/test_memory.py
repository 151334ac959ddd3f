"""What people may write after --memory."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.memory import Auto, Exactly, Grow, MemoryAsk, Share, parse_memory
from sublet.errors import BadRequest
from sublet.units import GiB, MiB
from support.jobs import asks


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("2GiB", Exactly(2 * GiB)),
        (" 512 mib ", Exactly(512 * MiB)),
        ("40%", Share(0.4)),
        ("40 %", Share(0.4)),
        ("12.5%", Share(0.125)),
        ("100%", Share(1.0)),
        ("2GiB total", Exactly(2 * GiB, total=True)),
        ("25% Total", Share(0.25, total=True)),
        ("grow", Grow()),
        ("AUTO", Auto()),
    ],
)
def test_each_way_of_asking_is_understood(text: str, ask: MemoryAsk) -> None:
    assert parse_memory(text) == ask


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "0%", "-5%", "101%", "nan%", "inf%", "%", "1e400%", "-2GiB", "2 bananas", "all"),
        *("2GiB..", "..2GiB", "0..1GiB", "10%..20%", "1GiB..nan"),
        *("total", " total", "auto total", "1GiB..2GiB total", "25% total total", "200% total"),
    ],
)
def test_anything_else_is_refused_with_what_was_written_and_what_to_write(text: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse_memory(text)
    assert f"memory {text!r}" in refusal.value.message
    for form in ("2GiB", "40%", "`grow`", "`auto`"):
        assert form in refusal.value.hint


@given(st.text(max_size=30))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        ask = parse_memory(text)
    except BadRequest:
        return
    if isinstance(ask, Exactly):
        assert ask.bytes > 0
    if isinstance(ask, Share):
        assert 0 < ask.share <= 1


@given(st.integers(1, 100))
def test_a_share_reads_as_it_was_written(percent: int) -> None:
    assert str(parse_memory(f"{percent}%")) == f"{percent}%"


def test_the_other_ways_read_as_they_were_written() -> None:
    assert [str(parse_memory(text)) for text in ("grow", "auto", "2GiB", "25% total")] == [
        "grow",
        "auto",
        "2.0 GiB",
        "25% total",
    ]


@given(asks)
def test_asking_survives_the_wire_and_the_ledger(ask: MemoryAsk) -> None:
    assert msgspec.json.decode(msgspec.json.encode(ask), type=MemoryAsk) == ask
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=MemoryAsk) == ask
