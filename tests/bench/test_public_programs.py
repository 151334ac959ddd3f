"""What the runs of public programs under Sublet add up to."""

import json
from dataclasses import asdict
from pathlib import Path

from bench import together
from bench.corpus import programs
from bench.repeats import Once, Series, held_out, read, result
from bench.together import Batch, End, Need

_MiB = 2**20
WELL = Once(0, "exited", 200 * _MiB, 200 * _MiB, 70 * _MiB, 1.0, "warm")
GREW = Once(0, "exited", 64 * _MiB, 200 * _MiB, 70 * _MiB, 1.0, "warm")
DIED = Once(1, "lease exceeded", 64 * _MiB, 64 * _MiB, 60 * _MiB, 11.0, "warm")


def test_the_halves_are_halves_and_stay_what_they_are() -> None:
    names = [program.name for program in programs()]
    held = [name for name in names if held_out(name)]
    assert 0.3 < len(held) / len(names) < 0.7
    assert not held_out("TensorFlow-2.x-Tutorials/02-AutoGraph/main.py")
    assert held_out("docs/site/en/tutorials/quickstart/beginner.ipynb")


def test_series_are_found_again_and_the_latest_counts(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert read(kept) == {}
    series = [Series("a/b.py", (DIED,)), Series("c/d.py", (WELL,)), Series("a/b.py", (WELL, GREW))]
    kept.write_text("".join(json.dumps(asdict(one)) + "\n" for one in series))
    assert read(kept) == {"a/b.py": series[2], "c/d.py": series[1]}


def test_only_what_ends_otherwise_than_with_python_has_failed() -> None:
    series = {
        "good": Series("good", (WELL, GREW)),
        "dead": Series("dead", (WELL, DIED)),
        "bad": Series("bad", (Once(1, "exited", 0, 0, 0, 1.0, "warm"),), plain=1),
    }
    found = result(series, ["e/f.py: not run"])
    bars = {bar.name: (bar.value, bar.met) for bar in found.bars}
    assert bars["runs that failed"] == (1, False)
    assert bars["deaths for want of memory"] == (1, False)
    assert bars["programs"] == (3, False)
    assert "e/f.py" in found.render()


def test_sizes_by_hand_under_which_programs_die_are_not_the_best() -> None:
    end = End("a", 0, "exited", 64, 64, 60, 0.0)
    dead = End("a", 1, "lease exceeded", 64, 64, 60, 0.0)
    batches = [
        Batch(0, "first", 0.6, 13.0, (end, end)),
        Batch(0, "learned", 0.6, 11.0, (end, end)),
        Batch(0, "by hand, 1.05x", 0.6, 5.0, (dead, end)),
        Batch(0, "by hand, 1.25x", 0.6, 10.0, (end, end)),
        Batch(0, "by hand, 1.05x", 0.6, 5.0, (end, end)),
    ]
    found = together.result({"a": Need(60 * _MiB, 0), "b": Need(60 * _MiB, 0)}, batches)
    assert [bar.value for bar in found.bars] == [0, 1.1]
    assert all(bar.met for bar in found.bars)
    found.render()
