"""Rows as the broker sends them, made up."""

from typing import Any

from sublet.wire.rows import JobRow


def job_row(number: int, name: str, state: str, **facts: Any) -> JobRow:
    """A job in this state; what else is known of it is up to the test."""
    known: dict[str, Any] = {
        "reason": "",
        "submitted": 1.0,
        "since": 2.0,
        "attempt": 1,
        "attempt_id": f"{number}.1",
        "priority": "normal",
        "service": "guaranteed",
        "memory": "auto",
    }
    return JobRow(id=number, name=name, state=state, **known | facts)
