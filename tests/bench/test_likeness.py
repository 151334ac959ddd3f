"""How runs of public programs are judged, from made-up runs: nothing is run here."""

from bench.likeness import Run, Story, Verdict, lasting, repeats, result, unlike
from bench.outputs import lines


def run(out: str, code: int = 0, left: frozenset[str] = frozenset()) -> Run:
    return Run(code, 1.0, lines(out), [], left)


def test_another_exit_code_and_other_files_are_differences() -> None:
    plain = [run("a", left=frozenset({"work/model"})), run("a", left=frozenset({"work/model"}))]
    assert unlike(plain, run("a", 1, frozenset({"work/log"}))) == [
        "exit code 0 is 1",
        "left no work/model",
        "left work/log",
    ]


def test_files_that_plain_runs_do_not_always_leave_are_noise() -> None:
    plain = [run("a", left=frozenset({"work/x"})), run("a")]
    assert not unlike(plain, run("a"))


def test_random_numbers_that_come_again_are_noticed() -> None:
    plain = [run("0.1\n0.2\n0.3"), run("0.4\n0.5\n0.6")]
    again = [run("0.7\n0.8\n0.9"), run("0.7\n0.8\n0.9")]
    assert repeats(plain, again)
    assert not repeats(plain, plain)
    assert not repeats(again, again)  # A program that seeds them.


def test_a_difference_that_does_not_last_is_chance() -> None:
    plain = [run("guess 8\nend 1"), run("guess 8\nend 1")]
    found = unlike(plain, run("guess 0\nend 2"))
    assert len(found) == 2
    assert lasting(found, unlike(plain, run("guess 8\nend 3"))) == found[1:]


def test_the_table_counts_deaths_and_differences() -> None:
    good = Verdict(0, "warm", 2**28, 2**27)
    died = Verdict(1, "warm", 2**27, 2**27, "lease exceeded", ("exit code 0 is 1",))
    cold = Verdict(0, "cold: it sets TF_X", 2**28, 2**27)
    found = result(
        [
            Story("a/b.py", 0, 3.0, 2, {"first": good, "second": died, "cold": cold}),
            Story("a/c.py", 1, 3.0, words="NameError"),
        ]
    )
    assert {bar.name: bar.value for bar in found.bars} == {
        "programs": 1,
        "runs with another exit code": 1,
        "programs with other output": 1,
        "deaths for want of memory": 1,
    }
    assert found.failures == ("a/c.py: NameError",)
    assert "code 1" in found.render()
