"""Leases on all there was, trimmed when the program has settled: real boards, a clock by hand."""

import os
from pathlib import Path

from msgspec.structs import replace

from sublet.broker.events import LeaseTrimmed
from sublet.broker.state import State
from sublet.broker.trimmer import Trimmer
from sublet.domain.job import Job, Running
from sublet.domain.memory import Grow
from sublet.formats import attempt_files
from sublet.formats.lease import LeaseTerms as InsideLease
from sublet.inside import trim
from sublet.inside.measure import UsageWriter
from sublet.units import GiB, MiB
from support.jobs import job, lease, running

CEILING = 4 * GiB


def growing() -> Job:
    one = job(1, running(lease(ceiling=CEILING)))
    return replace(one, spec=replace(one.spec, memory=Grow()))


def usage(runs: Path, one: Job, pid: int = 0) -> UsageWriter:
    directory = runs / one.attempt_id
    directory.mkdir(exist_ok=True)
    held = InsideLease(1, 1, "token", "cpu", "cpu", None, CEILING, 16 * GiB, str(directory))
    made = UsageWriter(held, pid or os.getpid())
    made.note(runtime_started_ns=1, limit=CEILING, current=100 * MiB, peak=200 * MiB)
    return made


def settle(trimmer: Trimmer, one: Job, seconds: int = 60) -> list[tuple[Job, int]]:
    """Look every two seconds, and once more."""
    for second in range(0, seconds, 2):
        assert trimmer.look([one], float(second)) == []
    return trimmer.look([one], float(seconds))


def test_a_lease_is_trimmed_when_the_worker_confirms_and_not_before(tmp_path: Path) -> None:
    one, trimmer = growing(), Trimmer(tmp_path)
    worker = usage(tmp_path, one)
    assert trimmer.watches([one])
    assert settle(trimmer, one) == []
    asked = trim.asked(worker.lease)
    assert asked is not None
    assert 200 * MiB < asked < 260 * MiB

    worker.note(limit=asked)
    assert trimmer.look([one], 62.0) == [(one, asked)]


def test_a_program_in_several_processes_is_left_alone(tmp_path: Path) -> None:
    one, trimmer = growing(), Trimmer(tmp_path)
    worker = usage(tmp_path, one)
    usage(tmp_path, one, pid=os.getppid())
    settle(trimmer, one)
    assert trim.asked(worker.lease) is None


def test_only_leases_on_all_there_was_are_watched(tmp_path: Path) -> None:
    fixed = job(1, running(lease(ceiling=CEILING)))
    trimmer = Trimmer(tmp_path)
    worker = usage(tmp_path, fixed)
    assert not trimmer.watches([fixed])
    settle(trimmer, fixed)
    assert trim.asked(worker.lease) is None


def test_a_trimmed_lease_gives_its_room_back_and_is_not_trimmed_again(tmp_path: Path) -> None:
    one = growing()
    state = State([one])
    now = state.apply(LeaseTrimmed(1, 1, 256 * MiB))
    assert now is not None
    assert isinstance(now.state, Running)
    before, after = one.lease, now.lease
    assert before is not None
    assert after is not None
    assert after.ceiling == 256 * MiB
    assert before.charge - after.charge == before.ceiling - after.ceiling
    assert after.trimmed == CEILING
    assert "trimmed to the measured peak" in after.basis
    assert not Trimmer(tmp_path).watches([now])


def test_what_cannot_be_a_ceiling_is_not_taken_for_one(tmp_path: Path) -> None:
    worker = usage(tmp_path, growing())
    for text in ("", "many", "-1", "0", str(CEILING + 1)):
        (Path(worker.lease.dir) / attempt_files.CEILING).write_text(text)
        assert trim.asked(worker.lease) is None
