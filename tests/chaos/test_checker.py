"""The checker reports what breaks a promise: each forged history here breaks one."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chaos import checker, history
from chaos.history import Asked, Event, Fault, Holder, Sample
from sublet.domain.job import Finished, Job, Outcome, Past, Process, Waiting
from support import jobs

GiB = 1 << 30


def job(number: int = 1, outcome: Outcome | None = None, attempt: int = 1, **facts: Any) -> Job:
    """A job that has ended so; without an outcome, one that waits."""
    past, how = facts.pop("past", ()), facts.pop("how", "warm")
    state = Waiting(0.0) if outcome is None else Finished(9.0, outcome, None, how)
    plain = jobs.job(number, state, b"/job.py", attempt=attempt)
    return replace(plain, past=past, spec=replace(plain.spec, **{"client": None, **facts}))


def start(at: float, name: str = "a", attempt: int = 1, job: int = 1, pid: int = 0) -> Event:
    return Event("start", name, pid or int(100 + at), at, {"job": job, "attempt": attempt})


def end(at: float, name: str = "a", attempt: int = 1, job: int = 1, code: int = 0) -> Event:
    facts = {"job": job, "attempt": attempt, "code": code}
    return Event("end", name, 100, at, facts)


def asked(kind: str = "run", code: int = 0, expected: int = 0, **facts: Any) -> Asked:
    fields: dict[str, Any] = {"name": "a", "pid": 5, "said": "", "began": 0.0, "ended": 9.0} | facts
    return Asked(kind=kind, expected=expected, code=code, **fields)


def kill(pid: int, kind: str = "worker", at: float = 1.0) -> Fault:
    return Fault("kill", kind, pid, at, at)


GOOD = [start(0.0), end(1.0)]
DONE = Outcome("exited", 0)


def test_nothing_is_said_of_a_run_without_faults(tmp_path: Path) -> None:
    known = {1: job(outcome=DONE)}
    path = tmp_path / "history"
    path.write_text('{"kind": "start", "name": "a", "pid": 100, "at": 0.0, "job": 1}\n')
    assert [one.name for one in history.read(path)] == ["a"]
    assert checker.attempts_overlap(GOOD) == []
    assert checker.jobs_lost([asked(jobs=(1,))], known, {}) == []
    assert checker.runs_again(GOOD, known) == []
    assert checker.out_of_order(GOOD, [asked(jobs=(1,), at_once=1)], known) == []
    assert checker.Codes(GOOD, [], known).of_jobs() == []
    assert checker.Codes(GOOD, [], known).of_commands([asked()]) == []
    assert checker.calls_wrong(GOOD, []) == []


def test_two_attempts_at_once_are_reported() -> None:
    (by_lock,) = checker.attempts_overlap([start(0.0), Event("overlap", "a", 7, 1.0, {})])
    assert "while another ran" in by_lock
    both = [start(0.0, pid=100), start(1.0, attempt=2, pid=101), end(2.0)]
    (by_clock,) = checker.attempts_overlap(both)
    assert "before" in by_clock


def test_a_job_that_vanished_or_waits_without_a_reason_is_reported() -> None:
    given = [asked("submit", jobs=(1, 2, 3))]
    known = {2: job(2), 3: job(3)}
    first, second = checker.jobs_lost(given, known, {3: "needs 1 GiB"})
    assert "does not know it" in first
    assert "#2" in second


def test_another_attempt_that_no_policy_allows_is_reported() -> None:
    events = [start(0.0), end(1.0), start(2.0, attempt=2), end(3.0, attempt=2)]
    past = (Past(1, 1.0, DONE),)
    (found,) = checker.runs_again(events, {1: job(outcome=DONE, attempt=2, past=past)})
    assert "was started again after" in found
    failed = (Past(1, 1.0, Outcome("signalled", 137)),)
    allowed = {1: job(outcome=DONE, attempt=2, past=failed, retries=1)}
    assert checker.runs_again(events, allowed) == []


def test_attempts_that_the_ledger_does_not_know_are_reported() -> None:
    events = [start(0.0), start(1.0), start(2.0, attempt=7)]
    found = checker.runs_again(events, {1: job(outcome=DONE, attempt=1)})
    assert [one.partition(": ")[2] for one in found] == [
        "one attempt ran twice: [1, 1, 7]",
        "the ledger knows nothing of attempts [7]",
    ]


def test_a_program_in_the_foreground_that_ran_twice_is_reported() -> None:
    client = Process(5, 5)
    known = {1: job(1, DONE, client=client), 2: job(2, DONE, client=client)}
    assert checker.runs_again([start(0.0), start(1.0, job=2)], known) == ["a ran 2 times"]


def test_charges_above_the_capacity_are_reported() -> None:
    fits = Sample("ledger", {"cpu": 3 * GiB}, (Holder(1, 2 * GiB, GiB, "cpu", None),))
    inner = (Holder(1, 3 * GiB, GiB, "cpu", None), Holder(2, 2 * GiB, GiB, "cpu", 1))
    assert checker.over_capacity([fits]) == []
    (above,) = checker.over_capacity([fits._replace(capacity={"cpu": GiB})])
    assert above.startswith("ledger: 2147483648 of 1073741824")
    (within,) = checker.over_capacity([fits._replace(holders=inner)])
    assert "within #1" in within


def test_who_did_not_wait_for_another_is_reported() -> None:
    known = {1: job(1, Outcome("exited", 3)), 2: job(2, DONE, after_ok=(1,))}
    events = [start(0.0), start(1.0, "b", job=2), end(2.0, code=3)]
    early, unwell = checker.out_of_order(events, [], known)
    assert early == "#2 began before #1 had ended"
    assert "did not end well" in unwell


def test_more_of_an_array_at_once_than_it_says_are_reported() -> None:
    events = [start(0.0), start(0.5, "b", job=2), end(2.0), end(2.0, "b", job=2)]
    known = {1: job(1, DONE), 2: job(2, DONE)}
    (found,) = checker.out_of_order(events, [asked(jobs=(1, 2), at_once=1)], known)
    assert found == "a: 2 ran at once, not 1"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("exited", 3),
        *(Outcome("signalled", 137), Outcome("lost", 255), Outcome("lease exceeded", 1)),
        *(Outcome("stopped", 143), Outcome("cancelled", 143), Outcome("dependency", 143)),
    ],
    ids=lambda outcome: outcome.cause,
)
def test_codes_in_the_ledger_that_are_not_true_are_reported(outcome: Outcome) -> None:
    assert checker.Codes(GOOD, [], {1: job(outcome=outcome)}).of_jobs()


def test_codes_that_faults_explain_are_not_reported() -> None:
    events = [start(0.0, pid=100)]
    known = {1: job(outcome=Outcome("signalled", 137))}
    codes = checker.Codes(events, [kill(100)], known)
    assert codes.of_jobs() == []
    left = {1: job(outcome=Outcome("stopped", 143), client=Process(7, 7))}
    assert checker.Codes(events, [kill(7, "client")], left).of_jobs() == []
    ended = {1: job(outcome=Outcome("cancelled", 143)), 2: job(2, Outcome("dependency", 143))}
    ended[2] = replace(ended[2], spec=replace(ended[2].spec, after_ok=(1,)))
    assert checker.Codes(events, [], ended, {1}).of_jobs() == []
    assert codes.of_commands([asked(code=137), asked(code=-9)]) == []
    all_three = [kill(7, kind) for kind in ("keeper", "witness", "broker")]
    lost = checker.Codes(GOOD, all_three, {1: job(outcome=Outcome("lost", 255), how="cold")})
    assert lost.of_jobs() == []
    assert lost.lost == 1


def test_codes_of_commands_that_are_not_true_are_reported() -> None:
    codes = checker.Codes(GOOD, [], {1: job(outcome=Outcome("exited", 3))})
    wrong = [
        asked(code=1),
        asked("submit", code=2, said="The ledger cannot be written: the disk is full."),
        asked("pool", code=1),
        asked("wait", name="1", code=0),
        asked("run", name="never began"),
    ]
    assert len(codes.of_commands(wrong)) == len(wrong)


def test_a_refusal_that_names_a_full_disk_is_true_while_it_is_full() -> None:
    full = Fault("full disk", "", 0, 1.0, 2.0)
    codes = checker.Codes(GOOD, [full], {})
    said = "The ledger cannot be written: the disk is full."
    assert codes.of_commands([asked("submit", code=2, said=said)]) == []
    assert codes.of_commands([asked("submit", code=2, said="Traceback")])


def test_wrong_answers_are_reported() -> None:
    wrong = [
        Event("answer", "p.1", 1, 1.0, {"how": "wrong"}),
        Event("answer", "p.2", 1, 1.0, {"how": "odd", "said": "KeyError()"}),
        Event("answer", "a", 1, 1.0, {"how": "died"}),
        Event("calls", "c", 1, 1.0, {"counts": {"right": 5, "wrong": 1}}),
        Event("odd", "c", 1, 1.0, {"said": "KeyError()"}),
        Event("inner", "o/1", 1, 1.0, {"code": 0, "expected": 5, "said": ""}),
        Event("refused", "h", 1, 1.0, {"said": "BrokerGone"}),
    ]
    assert len(checker.calls_wrong([*GOOD, *wrong], [])) == len(wrong)


def test_a_kill_excuses_nobody_who_had_the_same_number_before() -> None:
    codes = checker.Codes(GOOD, [kill(5, at=1000.0), kill(100, at=1000.0)], {})
    assert len(codes.of_commands([asked(code=-9), asked(code=137)])) == 2


def test_a_server_that_was_killed_after_a_long_life_may_say_so() -> None:
    served = asked("serve", code=-9, ended=900.0)
    assert checker.Codes([], [kill(5, "server", 899.0)], {}).of_commands([served]) == []
    assert checker.Codes([], [kill(6, "server", 899.0)], {}).of_commands([served])


def test_an_end_of_another_process_by_the_same_number_is_no_overlap() -> None:
    killed, again = start(0.0, pid=100), start(2.0, attempt=2, pid=101)
    assert checker.attempts_overlap([killed, again, end(9.0, name="b")]) == []
    assert len(checker.attempts_overlap([killed, again, end(9.0)])) == 1
