"""Promises of the benchmarks' tables, from made-up samples: nothing is measured here."""

import sys
from pathlib import Path

import pytest

from bench import (
    classes,
    driver,
    elastic,
    jobs,
    memory,
    page,
    parts,
    plan,
    processes,
    ray,
    replayed,
    report,
    rest,
    sizing,
    startup,
    step,
    sweeps,
    threads,
    ways,
)

MiB = 2**20
DRIVES = {
    way.key: {
        count: [driver.Drive(1234.5 * (way.kind == "fresh") + count + 3, float(count), (0.1,))]
        for count in (8, 24)
    }
    for way in ways.WAYS
}
RESULTS = (
    startup.result(
        {"plain": (3.0, 3.2, 3.1), "sublet-command": (0.15, 0.2), "sublet-call": (0.05,)}
    ),
    jobs.result(DRIVES, (8, 24)),
    sweeps.result(
        {"sublet run": 4.5, "sublet": 7.1, "fit": 50.7, "pool": 31.2},
        {"sublet run": 6.0, "fit": 20.0},
        {
            "MLP 2048": (
                "serial",
                {"auto": 1234.5, "fused": float("inf"), "packed": 1400.0, "serial": 1200.0},
            )
        },
        {"whole": [20.0, {"rate": 0.01}], "halving": [6.0, {"rate": 0.01}]},
        {"1": 1.2, "128": 8.0},
        {"mlp SGD": (1e-6, 1e-6), "batchnorm Adam": (1e-2, 1e-5)},
    ),
    memory.result(
        {
            "python job.py": memory.Weights(6, 0, 1860 * MiB),
            "limit: bare fork, preloaded": memory.Weights(6, 300 * MiB, 1200 * MiB),
            "sublet run job.py": memory.Weights(6, 320 * MiB, 1100 * MiB, clients=60 * MiB),
        }
    ),
    rest.result(
        {"--help": [0.1], "status": [0.14, 0.2]},
        {
            "broker": rest.AtRest(39_000_000, 30_000_000, 0.0001, 20.0),
            "nursery": rest.AtRest(590_000_000, 320_000_000, 0.0, 20.0),
        },
    ),
    page.result(
        page.Figures(
            paints=[0.2, 0.3],
            drawn=[0.5, 0.9],
            updates=[0.3, 1.2],
            sizes={"history": 586_000},
            week=[20_000_000 + 1000 * day for day in range(8)],
            shares={"nothing runs": 0.0003},
        )
    ),
    step.result(
        {
            mode: {model: [(0.01, 0.02), (0.03, 0.04)] for model in ("cnn", "mlp")}
            for mode in ("plain", "pool", "sleep", "lease")
        }
    ),
    elastic.result(
        [0.01, 0.02, 0.5],
        {"cnn": (300 * MiB, 30 * MiB)},
        {
            f"{way}, {share}": [elastic.Batch(seconds, (0, code), 1)]
            for share in ("100%", "60%")
            for way, seconds, code in (
                ("first run", 9.0, 0),
                ("second run", 10.0, int(share == "60%")),
                ("by hand", 8.0, 1),
            )
        },
    ),
    plan.result(
        {
            name: {1_000: [0.0001], 10_000: [0.001], 100_000: [0.02]}
            for name in ("build", "plan", "nothing fits", "mixed", "passing", "all reasons")
        },
        {
            way: replayed.Replayed(100_000, 200_000, 1e-4, 2e-3, 0.1, (9 << 20,) * 4, 0)
            for way in replayed.WAYS
        },
    ),
    ray.result({way: [1.5, 2.5, 12.5] for way in ray.WAYS}),
    sizing.result(
        {
            "a_program_with_a_long_name": [
                sizing.Story(
                    sizing.Forecast(1000 * MiB, 900 * MiB, 1300 * MiB),
                    (
                        sizing.Run(12345 * MiB, 1000 * MiB, 0),
                        sizing.Run(1201 * MiB, 1010 * MiB, 0),
                        sizing.Run(1150 * MiB, 0, 139),
                    ),
                )
            ],
            "tiny": [sizing.Story(None, (sizing.Run(64 * MiB, MiB, 0),) * 2)],
        }
    ),
    parts.result(
        parts.Two(320 * MiB, 192 * MiB, True, (168 * MiB, 170 * MiB), 3e-7),
        [parts.Pipelined(count, 1.234, 0.789) for count in (1, 4, 16)],
    ),
    classes.result(
        {
            name: {
                classes.ALONE: [(100.0, 0.0)],
                classes.GUEST: [(98.0, 30.0)],
                classes.EQUAL: [(60.0, 60.0)],
                classes.NEIGHBOUR: [(0.0, 100.0)],
            }
            for name in classes.CASES
        },
        dict.fromkeys(classes.CASES, 12),
    ),
    threads.result(
        {
            (kind, count): {
                way: [(123.4, 234.5, 1234 * MiB * (1 + (way == threads.PROCESSES)))]
                for way in threads.WAYS
            }
            for kind in threads.KINDS
            for count in (2, 8)
        }
    ),
)
BY_NAME = {result.name: result for result in RESULTS}


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_everything_printed_fits_a_terminal(result: report.Result) -> None:
    """Tables, notes and bars."""
    lines = result.render().splitlines()
    assert max(map(len, lines)) <= report.WIDTH
    assert any("met" in line for line in lines)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_every_benchmark_judges_itself(result: report.Result) -> None:
    """Each has bars."""
    assert result.bars


def test_startup_is_judged_by_the_ratio_of_medians() -> None:
    """3.1 s beside 0.175 s and 0.05 s."""
    sooner = [round(bar.value, 1) for bar in RESULTS[0].bars]
    assert sooner == [17.7, 62.0]
    assert [bar.met for bar in RESULTS[0].bars] == [False, True]


def test_ours_once_warm_stands_beside_peers_with_their_start_up_in_and_out() -> None:
    """Both comparisons are printed, so that nobody has to guess which one it is."""
    bars = {bar.name: bar.value for bar in RESULTS[1].bars}
    assert bars["run, 8 jobs: best reused, all"] == pytest.approx(11 / 8)
    assert bars["run, 8 jobs: best reused, warm"] == pytest.approx(1.0)


def test_a_way_that_failed_leaves_a_row_and_no_bar() -> None:
    """The others are still compared."""
    without = {key: by for key, by in DRIVES.items() if key != "sublet-call"}
    result = jobs.result(without, (8,), ("sublet.run(): exit code 1",))
    assert "failed" in result.render()
    assert not [bar for bar in result.bars if bar.name.startswith("run()")]


def test_a_bar_within_the_interval_is_neither_met_nor_missed() -> None:
    """Only an interval that lies on one side tells."""
    bars = [report.Bar("a step", 4, 5, "at most", "%", ends) for ends in ((1, 4.5), (3, 7), (6, 7))]
    assert [bar.met for bar in bars] == [True, None, False]
    assert "unsure" in bars[1].render()


def test_in_eight_rounds_each_mode_has_each_turn_twice() -> None:
    """Whoever comes first after a pause, or last, is no longer always the same."""
    for place in range(4):
        assert sorted(step.order(number)[place] for number in range(8)) == sorted(2 * step.order(0))


def test_one_more_worker_is_what_all_processes_together_gained() -> None:
    """The nursery that was there before is not charged to the workers."""
    assert memory.Weights(6, 320 * MiB, 1100 * MiB).each == 130 * MiB


def test_a_program_that_fails_is_no_figure_but_its_last_words(tmp_path: Path) -> None:
    """A real process that fails."""
    words = [sys.executable, "-c", "raise SystemExit('out of luck')"]
    with pytest.raises(processes.Failed, match="exit code 1: out of luck"):
        processes.run(words, {}, tmp_path / "log")


def test_a_program_that_never_ends_is_killed_and_is_no_figure(tmp_path: Path) -> None:
    """A real process that waits for ever."""
    words = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(processes.Failed, match=r"not done after 0\.1 s"):
        processes.run(words, {}, tmp_path / "log", timeout=0.1)


def test_sizing_counts_every_death_and_leaves_out_what_is_below_the_smallest_lease() -> None:
    """1201 MiB for a peak of 1010; one run of two died; the tiny program has no say."""
    assert tuple(bar.value for bar in BY_NAME["sizing"].bars) == (1, 1, 12)
    assert "At the most, a second lease was 1.19x of the peak" in BY_NAME["sizing"].render()


def test_elastic_counts_the_deaths_of_programs_that_nobody_has_sized() -> None:
    """And compares the second run on the small device with sizes said by hand."""
    median, died, makespan = (bar.value for bar in BY_NAME["elastic"].bars)
    assert (median, died, round(makespan, 2)) == (0.02, 1, 1.25)
