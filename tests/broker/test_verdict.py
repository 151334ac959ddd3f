"""What an exit and what a program left behind say together."""

from pathlib import Path

import pytest

from sublet.backends.backend import Ending
from sublet.broker.verdict import Neighbours, judge
from sublet.domain.job import Outcome
from support.jobs import job, lease, running

_EXIT_1 = 1 << 8
_SIGSEGV = 11
_SIGTERM = 15


def _judge(directory: Path, status: int | None, stopped: str = "") -> Outcome:
    return judge(job(1, running(lease())), Ending(status, stopped), str(directory), Neighbours())


def _fail_an_allocation(directory: Path) -> None:
    """What TensorFlow's allocator leaves when it says no."""
    for microseconds in (1794786607884420, 1794786617884420):
        dump = directory / f"dump-7_bfc_cpu_allocator_for_gpu.{microseconds}"
        dump.write_bytes(b"\x0a")


@pytest.mark.parametrize("status", [_EXIT_1, _SIGSEGV])
def test_an_allocation_that_failed_last_explains_a_bad_end(tmp_path: Path, status: int) -> None:
    """Whatever name the error had, or none."""
    _fail_an_allocation(tmp_path)
    assert _judge(tmp_path, status).cause == "lease exceeded"


def test_an_allocation_that_failed_is_no_excuse_for_other_ends(tmp_path: Path) -> None:
    """A good end, somebody's SIGTERM, our own stop."""
    _fail_an_allocation(tmp_path)
    assert _judge(tmp_path, 0).cause == "exited"
    assert _judge(tmp_path, _SIGTERM).cause == "signalled"
    assert _judge(tmp_path, _SIGTERM, "its client ended").cause == "stopped"


def test_an_end_without_evidence_is_what_it_looks_like(tmp_path: Path) -> None:
    """Exit codes and signals as a shell shows them; unseen is said to be so."""
    assert (_judge(tmp_path, _EXIT_1).cause, _judge(tmp_path, _EXIT_1).code) == ("exited", 1)
    assert (_judge(tmp_path, _SIGSEGV).cause, _judge(tmp_path, _SIGSEGV).code) == ("signalled", 139)
    unseen = _judge(tmp_path, None)
    assert (unseen.cause, unseen.code, unseen.unseen) == ("lost", 255, True)
    assert "may have done its work" in unseen.message
