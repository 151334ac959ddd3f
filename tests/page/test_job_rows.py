"""Text that somebody else wrote reaches the page short, in one line, with nothing unseen in it."""

import msgspec
import pytest

from sublet.page.job_rows import shown_event, shown_job
from sublet.wire.rows import JobRow, LeaseEventRow

HOSTILE = [
    "<script>alert(1)</script>",
    "a\nb\x00\x1b[31m",
    "\u202egnp.exe",
    "x" * (1 << 20),
    "\ud800",
]


def row(text: str) -> JobRow:
    return JobRow(
        id=1,
        name=text,
        state="running",
        reason=text,
        submitted=1.0,
        attempt=1,
        attempt_id="1.1",
        priority="normal",
        service="guaranteed",
        memory="auto",
        basis=text,
        how=text,
    )


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_text_and_short(text: str) -> None:
    shown = shown_job(row(text))
    event = shown_event(LeaseEventRow(1.0, "cpu", 1, text, 1, "failed", 1, text))
    for one in (shown.name, shown.reason, shown.basis, shown.how, event.name, event.text):
        assert len(one) <= 1000
        assert not set(one) & set("\n\x00\x1b\u202e\ud800")
    assert len(msgspec.json.encode(shown)) < 8000


def test_markup_stays_as_it_was_written() -> None:
    """It is put into text nodes: nothing is escaped twice."""
    assert shown_job(row("<b>&amp;")).name == "<b>&amp;"
