"""A job and its attempts."""

import pytest
from msgspec.structs import replace

from sublet.domain.job import MOST_PAST, Again, Outcome, Paused, Program, Waiting
from sublet.units import MiB
from support.jobs import job, lease, running


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        (Program("script", b"a.py", (b"x",), (b"-u",), b"py"), [b"py", b"-u", b"a.py", b"x"]),
        (Program("module", b"pkg", (b"x",), (b"-u",), b"py"), [b"py", b"-u", b"-m", b"pkg", b"x"]),
        (Program("code", b"1", (b"x",), (), b"py"), [b"py", b"-c", b"1", b"x"]),
        (Program("command", b"/bin/sh", (b"-c", b"1")), [b"/bin/sh", b"-c", b"1"]),
    ],
)
def test_a_program_is_started_by_the_command_line_it_was_read_from(
    program: Program, argv: list[bytes]
) -> None:
    assert program.argv() == argv


def test_another_attempt_has_a_directory_of_its_own_and_holds_nothing() -> None:
    first = job(7, running(lease()))
    second = first.again(Waiting(5.0))
    assert second == replace(job(7, Waiting(5.0), attempt=2), false_starts=1)
    assert (first.attempt_id, second.attempt_id) == ("7.1", "7.2")
    assert (first.lease, second.lease) == (lease(), None)


def test_what_an_attempt_needs_at_the_least_is_never_forgotten() -> None:
    oom = Outcome("lease exceeded", 1)
    taught = job().after(2.0, 1.0, oom, Again("", least=768 * MiB))
    assert taught.least == 768 * MiB
    assert taught.again(Waiting(3.0)).least == 768 * MiB
    assert taught.after(3.0, 2.0, oom, Again("", least=512 * MiB)).least == 768 * MiB
    assert taught.after(3.0, 2.0, oom, Again("", least=1024 * MiB)).least == 1024 * MiB
    assert taught.evolve(running(lease())).least == 768 * MiB


def test_only_so_many_past_attempts_are_remembered() -> None:
    one = job()
    for number in range(MOST_PAST + 5):
        one = one.after(float(number), 0.0, Outcome("exited", 1), Again("exit code 1"))
    assert [past.at for past in one.past] == [float(n) for n in range(5, MOST_PAST + 5)]
    assert one.failures == MOST_PAST + 5


def test_a_paused_job_holds_what_it_held() -> None:
    assert job(state=Paused(3.0, running(lease()))).lease == lease()
    assert job(state=Paused(3.0, Waiting(1.0))).lease is None
