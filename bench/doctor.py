"""`make doctor-score`: precision and recall of `sublet doctor` over programs and logs.

    tests/doctor/corpus   sick programs and logs with what is wrong with them, and healthy programs
    examples, demo, …     programs of ours that work
    --corpus DIR          public programs, judged by hand: bench/corpus/doctor.toml

Counted are pairs of file and rule. Notes count like findings where a log is expected to have them.
`--reproduce` runs the sick programs with TensorFlow instead, and looks whether they end as claimed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.corpus import Program, programs, sources
from sublet.doctor.machine import Machine
from sublet.doctor.reading import check_log, check_script

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "doctor" / "corpus"
PUBLIC = Path(__file__).parent / "corpus" / "doctor.toml"
PRECISION, RECALL = 0.95, 0.90
MACHINE = Machine(python=(3, 11), tensorflow="2.21.0", keras="3.15.1", tf_keras=True)
"""The machine that the programs are judged for, wherever this runs."""
_OURS = ("examples", "demo", "bench/programs")
_PATIENCE = 180
_CARDS = {"cpu": 0, "gpu": 1, "gpus": 2}


@dataclass
class Score:
    """Pairs of file and rule: found and expected, found alone, expected alone."""

    name: str
    files: int = 0
    right: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    missed: list[tuple[str, str]] = field(default_factory=list)

    def add(self, file: str, found: Iterable[str], expected: Iterable[str]) -> None:
        """Count one file."""
        found, expected = set(found), set(expected)
        self.files += 1
        self.right += len(found & expected)
        self.wrong += [(file, rule) for rule in sorted(found - expected)]
        self.missed += [(file, rule) for rule in sorted(expected - found)]

    @property
    def precision(self) -> float:
        """The share of what was found that is so; 1 if nothing was found."""
        return _share(self.right, self.wrong)

    @property
    def recall(self) -> float:
        """The share of what is so that was found; 1 if nothing is."""
        return _share(self.right, self.missed)

    @property
    def good(self) -> bool:
        """Whether it reaches both bars."""
        return self.precision >= PRECISION and self.recall >= RECALL


def _share(right: int, others: list[tuple[str, str]]) -> float:
    return right / (right + len(others)) if right or others else 1.0


def expectations() -> tuple[dict[str, dict[str, object]], dict[str, list[str]]]:
    """What is to be found in the sick programs and in the logs of the corpus."""
    document = tomllib.loads((CORPUS / "expected.toml").read_text())
    return document["sick"], document["logs"]


def rules_in(path: Path, text: str) -> set[str]:
    """The rules that count, of a program."""
    return {one.rule for one in check_script(path.name, text, MACHINE) if one.counts}


def healthy() -> list[Path]:
    """Programs of ours with which nothing is wrong."""
    ours = [path for folder in _OURS for path in sorted((ROOT / folder).rglob("*.py"))]
    notebooks = sorted((ROOT / "examples").rglob("*.ipynb"))
    return [*sorted((CORPUS / "healthy").iterdir()), *ours, *notebooks]


def own_scores() -> Iterator[Score]:
    """Over what is in this repository."""
    sick, logs = expectations()
    score = Score("sick programs")
    for name, entry in sick.items():
        path = CORPUS / "sick" / name
        expected = entry["rules"]
        assert isinstance(expected, list)
        score.add(name, rules_in(path, path.read_text()), expected)
    yield score
    score = Score("logs")
    for name, expected in logs.items():
        found = check_log(name, (CORPUS / "logs" / name).read_text())
        score.add(name, [one.rule for one in found], expected)
    yield score
    score = Score("healthy programs")
    for path in healthy():
        score.add(str(path.relative_to(ROOT)), rules_in(path, path.read_text()), [])
    yield score


def public_scores(copies: Path) -> Iterator[Score]:
    """Over public programs: those that the rules were tuned on, and the others."""
    document = tomllib.loads(PUBLIC.read_text())
    tuned, judged = Score("public programs, tuned on"), Score("public programs, judged on")
    for repository in document["repository"]:
        program = Program(repository["name"], repository["commit"], "")
        expected: dict[str, list[str]] = repository.get("findings", {})
        score = judged if repository["judged"] else tuned
        for path, text in sources.texts(program, copies, repository["folders"]):
            found = rules_in(Path(path), text)
            score.add(f"{repository['name']}/{path}", found, expected.get(path, []))
    yield tuned
    yield judged
    known: dict[str, list[str]] = document["ends-well"]
    score = Score("public programs that end well")
    for one in programs():
        if one.commit:
            folder, _, _ = one.path.rpartition("/")
            for path, text in sources.texts(one, copies, [folder]):
                if path == one.path:
                    score.add(one.name, rules_in(Path(path), text), known.get(one.name, []))
    yield score


def show(scores: list[Score]) -> bool:
    """Print a table, and what is wrong; whether all bars are reached."""
    print(
        f"{'':<32}{'files':>6}{'found':>7}{'wrong':>7}{'missed':>8}{'precision':>11}{'recall':>8}"
    )
    for one in scores:
        found = one.right + len(one.wrong)
        print(
            f"{one.name:<32}{one.files:>6}{found:>7}{len(one.wrong):>7}{len(one.missed):>8}"
            f"{one.precision:>11.3f}{one.recall:>8.3f}"
        )
    for one in scores:
        for what, pairs in (("wrong", one.wrong), ("missed", one.missed)):
            for file, rule in pairs:
                print(f"  {what}: {file}: {rule}")
    total = Score("all")
    for one in scores:
        total.right += one.right
        total.wrong += one.wrong
        total.missed += one.missed
    print(f"all: precision {total.precision:.3f}, recall {total.recall:.3f}")
    return total.good and all(one.good for one in scores)


def reproduce(names: list[str]) -> bool:
    """Run the sick programs, and say which of them end as is claimed. GPUs are stand-ins."""
    sick, _ = expectations()
    good = True
    for name, entry in sick.items():
        ends, on = str(entry.get("ends", "")), str(entry.get("on", ""))
        if (names and name not in names) or not ends:
            continue
        with tempfile.TemporaryDirectory() as folder:
            said = _output(CORPUS / "sick" / name, _environment(on, Path(folder)))
        good &= ends in said
        last = (said.strip().splitlines() or [""])[-1][:100]
        print(f"{'as claimed' if ends in said else 'OTHERWISE'} {name} ({on}): {last}", flush=True)
    return good


def _output(path: Path, environ: dict[str, str]) -> str:
    try:
        ended = subprocess.run(
            [sys.executable, str(path)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
        return ended.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + f"\nhangs for {_PATIENCE} s"


def _environment(on: str, folder: Path) -> dict[str, str]:
    """The variables of a program on the CPU, or with one or two stand-in GPUs."""
    count = _CARDS[on]
    if not count:
        return dict(os.environ)
    sys.path.insert(0, str(ROOT / "tests"))
    from standin import Gpu  # Built with a compiler, so not for scores.
    from standin import Machine as Standin

    cards = [Gpu(uuid=f"GPU-{n}", name=f"Card {n}", total=2 << 30) for n in range(count)]
    return {**os.environ, **Standin(folder, *cards).environ}


def main() -> int:
    """Score the rules, or run the programs; 1 if a bar is not reached."""
    parser = argparse.ArgumentParser(prog="bench.doctor", description=__doc__)
    parser.add_argument("--corpus", type=Path, help="git directories, owner+name")
    parser.add_argument("--json", type=Path, help="write the scores here")
    parser.add_argument("--reproduce", nargs="*", metavar="PROGRAM", help="run the sick programs")
    asked = parser.parse_args()
    if asked.reproduce is not None:
        return 0 if reproduce(asked.reproduce) else 1
    scores = [*own_scores(), *(public_scores(asked.corpus) if asked.corpus else ())]
    if asked.json:
        rows = [{"name": one.name, "files": one.files, "right": one.right} for one in scores]
        asked.json.write_text(json.dumps(rows, indent=1))
    return 0 if show(scores) else 1


if __name__ == "__main__":
    sys.exit(main())
