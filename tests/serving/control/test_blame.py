"""Whoever ends engines is found; whoever was only there is not."""

from sublet.serving.control.blame import _MEMORY, Blame

A, B, C = ("a", 1), ("b", 1), ("c", 1)
ENGINE, OTHER = "engine", "other"


def test_one_that_was_busy_in_two_ends_is_to_blame() -> None:
    blame = Blame()
    assert blame.judge(ENGINE, [A], 0.0) is None
    assert blame.judge(ENGINE, [A], 1.0) == A


def test_an_end_without_anything_to_do_is_nobodys_fault() -> None:
    blame = Blame()
    assert blame.judge(ENGINE, [], 0.0) is None
    assert blame.judge(ENGINE, [], 1.0) is None
    assert blame.judge(ENGINE, [A], 2.0) is None


def test_one_that_ran_beside_is_free_once_it_is_clear_who_it_was() -> None:
    blame = Blame()
    assert blame.judge(ENGINE, [A, B], 0.0) is None
    assert blame.until(A) == blame.until(B) == _MEMORY
    assert blame.judge(ENGINE, [A, C], 1.0) == A
    assert blame.until(B) == blame.until(C) == 0.0


def test_as_long_as_two_were_there_each_time_nobody_is_blamed() -> None:
    blame = Blame()
    for now in range(5):
        assert blame.judge(ENGINE, [A, B], float(now)) is None
    assert blame.judge(ENGINE, [B], 5.0) == B


def test_suspicion_is_forgotten_in_time() -> None:
    blame = Blame()
    blame.judge(ENGINE, [A], 0.0)
    assert blame.judge(ENGINE, [A], _MEMORY + 1) is None


def test_one_whose_files_have_changed_begins_anew() -> None:
    blame = Blame()
    blame.judge(ENGINE, [A], 0.0)
    blame.forget(A)
    assert blame.judge(ENGINE, [A], 1.0) is None


def test_whoever_ends_another_engine_changes_nothing_here() -> None:
    blame = Blame()
    blame.judge(ENGINE, [A], 0.0)
    blame.judge(OTHER, [B], 1.0)
    assert blame.judge(OTHER, [B], 2.0) == B
    assert blame.judge(ENGINE, [A], 3.0) == A
