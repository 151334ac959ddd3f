"""`make likeness`: public programs with `python` and with `sublet run`, and what differs.

    python ──▶ plain output, twice: what differs between the two is noise
    sublet run ──▶ first (warm, nothing known) · second (a learned lease) · cold · in a pool

Every run finds the same files: a working directory, a home with made data, nothing else. Compared
are the exit code, both outputs and the names of the files left behind. Where something differs,
plain Python runs some more times first: it may be noise that two runs did not show.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine, outputs, processes, report
from bench.corpus import LIST, Program, data, programs, sources
from bench.outputs import Line
from bench.sandbox import SUBLET, Sandbox, sandbox

_POOL = Path(__file__).parent / "programs" / "in_a_pool.py"
WAYS: dict[str, list[str | Path]] = {
    "first": [SUBLET, "run", "--quiet"],
    "second": [SUBLET, "run", "--quiet"],
    "cold": [SUBLET, "run", "--quiet", "--cold"],
    "pool": [sys.executable, _POOL],
}
_EVERY = 6
"""Of so many programs, one runs in a pool as well."""
_PLAIN = 5
"""So many plain runs are asked at most before a difference is believed."""
_AGAIN = 5
"""So often a program whose output differs is asked again: chance does not last."""
_BY_CHANCE = 3
"""In so many lines numbers are not the same by chance."""
_SHORT = {"KERAS_MAX_EPOCHS": "1", "KERAS_MAX_STEPS_PER_EPOCH": "3"}


@dataclass(frozen=True)
class Run:
    """One run, and all that can be seen of it from outside."""

    code: int | None
    """None if it was stopped because it took too long."""
    seconds: float
    out: list[Line]
    err: list[Line]
    left: frozenset[str]
    report: dict[str, Any] = field(default_factory=dict)
    """Sublet's report."""


@dataclass(frozen=True)
class Verdict:
    """How one program fared in one way beside plain Python."""

    code: int | None
    how: str = ""
    lease: int = 0
    peak: int = 0
    cause: str = ""
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """One program: plain Python, and every way beside it."""

    name: str
    code: int | None
    seconds: float
    plain_runs: int = 0
    ways: dict[str, Verdict] = field(default_factory=dict)
    words: str = ""
    """Why it does not count."""


class Bench:
    """Runs one program after another in a sandbox of its own."""

    def __init__(
        self,
        home: Sandbox,
        templates: dict[bool, Path],
        copies: Path,
        import_log: frozenset[str],
        longest: float,
    ) -> None:
        self.home = home
        self.templates = templates
        self.copies = copies
        self.place = home.directory / "place"
        self.user = self.place / "home"
        self.source = home.directory / "source"
        self.env = _environment(home, self.user)
        self.import_log = import_log
        self.longest = longest

    def story(self, program: Program, ways: Sequence[str]) -> Story:
        """Run a program in every way, and compare."""
        script = self.bring(program)
        plain = [self.run(program, [sys.executable], script)]
        base = plain[0]
        if base.code != 0:
            words = str(base.err[-1])[:120] if base.err else ""
            return Story(program.name, base.code, base.seconds, words=words)
        plain.append(self.run(program, [sys.executable], script))
        ours = {}
        for way in ways:
            ours[way] = self.run(program, WAYS[way], script, 3 * base.seconds + 60)
        while len(plain) < _PLAIN and any(unlike(plain, run) for run in ours.values()):
            plain.append(self.run(program, [sys.executable], script))
        found = {way: unlike(plain, run) for way, run in ours.items()}
        for way in ways:
            for _ in range(_AGAIN):
                if found[way] and _is_chance_possible(found[way]):
                    again = self.run(program, WAYS[way], script, 3 * base.seconds + 60)
                    found[way] = lasting(found[way], unlike(plain, again))
        if "second" in ours and repeats(plain, (ours["first"], ours["second"])):
            # A network that happens to be dead prints nothing but zeros: once more.
            again = self.run(program, WAYS["second"], script, 3 * base.seconds + 60)
            if repeats(plain, (ours["first"], again)):
                found["second"].append("numbers that nothing seeds are the same in three runs")
        verdicts = {way: _verdict(run, found[way]) for way, run in ours.items()}
        return Story(program.name, base.code, base.seconds, len(plain), verdicts)

    def bring(self, program: Program) -> Path:
        """Have the program's files ready to be copied; the path of its script among them."""
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.mkdir()
        return sources.bring(program, self.copies, self.source).relative_to(self.source)

    def _fresh(self, program: Program, source: Path) -> set[Path]:
        """The place as it is before every run; what is in it."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(source, self.place / "work")
        shutil.copytree(self.templates[program.full], self.user, copy_function=os.link)
        (self.place / "tmp").mkdir()
        return set(self.place.rglob("*"))

    def run(
        self, program: Program, words: Sequence[str | Path], script: Path, longest: float = 0
    ) -> Run:
        """Run it so, from the same files as every time."""
        before = self._fresh(program, self.source)
        report_file = self.home.directory / "report.json"
        report_file.unlink(missing_ok=True)
        reporting: list[str | Path] = ["--report", report_file] if words[0] == SUBLET else []
        files = [self.home.directory / name for name in ("out", "err")]
        began = time.monotonic()
        with files[0].open("wb") as out, files[1].open("wb") as err:
            child = subprocess.Popen(
                [*words, *reporting, script.name],
                cwd=self.place / "work" / script.parent,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            code = _finish(child, longest or self.longest)
        seconds = time.monotonic() - began
        left = frozenset(
            re.sub(r"\d+", "#", str(path.relative_to(self.place)))
            for path in set(self.place.rglob("*")) - before
            if self.place / "tmp" not in path.parents
        )
        shown = [outputs.lines(path.read_text(errors="replace"), self.import_log) for path in files]
        document = json.loads(report_file.read_text()) if report_file.exists() else {}
        return Run(code, seconds, shown[0], shown[1], left, document)


def unlike(plain: Sequence[Run], run: Run) -> list[str]:
    """What one run shows that none of the plain ones shows."""
    base = plain[0]
    differences = [] if run.code == base.code else [f"exit code {base.code} is {run.code}"]
    for name in ("out", "err"):
        was: list[Line] = getattr(base, name)
        noise = [one for it in plain[1:] for one in outputs.differences(was, getattr(it, name))]
        real = outputs.beyond(outputs.differences(was, getattr(run, name)), noise)
        differences += [f"std{name} {one}" for one in real]
    always = frozenset.intersection(*(it.left for it in plain))
    ever = frozenset.union(*(it.left for it in plain))
    differences += [f"left no {path}" for path in sorted(always - run.left)]
    differences += [f"left {path}" for path in sorted(run.left - ever)]
    return differences


def lasting(found: Sequence[str], again: Sequence[str]) -> list[str]:
    """The differences that are there again: in the same line, if not to the same."""
    places = {one.partition(" is ")[0] for one in again}
    return [one for one in found if one.partition(" is ")[0] in places]


def _is_chance_possible(found: Sequence[str]) -> bool:
    """Whether only the output differs: a program may draw numbers, or shuffle, without a seed. What
    is not chance is there in every run."""
    return all(one.startswith("std") for one in found)


def repeats(plain: Sequence[Run], ours: Sequence[Run]) -> bool:
    """Whether numbers are equal in both of our runs that are never equal in plain ones."""
    return _fractions(plain) >= _BY_CHANCE and _fractions(ours) == 0


def _fractions(runs: Sequence[Run]) -> int:
    """In how many lines two runs print different fractions."""
    found = outputs.differences(runs[0].out, runs[1].out)
    return sum(any("." in one.was[0].numbers[at] for at in one.numbers) for one in found)


def _environment(home: Sandbox, user: Path) -> dict[str, str]:
    """Little, and the same in all ways."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(user),
        "LANG": "C.UTF-8",
        "TMPDIR": str(home.directory / "place" / "tmp"),
        "SUBLET_HOME": home.env["SUBLET_HOME"],
        **_SHORT,
    }


def _finish(child: "subprocess.Popen[bytes]", longest: float) -> int | None:
    """Its exit code; None if it had to be stopped."""
    try:
        return child.wait(longest)
    except subprocess.TimeoutExpired:
        # `sublet run` hands this on; what plain Python started is in its session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _verdict(run: Run, found: list[str]) -> Verdict:
    facts = run.report
    return Verdict(
        run.code,
        report.without_directories(facts.get("how", "")),
        facts.get("lease") or 0,
        facts.get("peak") or 0,
        facts.get("cause", ""),
        tuple(map(report.without_directories, found)),
    )


def _import_log() -> frozenset[str]:
    """What TensorFlow's log says of its import alone: a warm program has that behind it."""
    words = [sys.executable, "-c", "import tensorflow, keras"]
    log = subprocess.run(words, capture_output=True, check=True).stderr.decode(errors="replace")
    return frozenset(outputs.LOG_HEAD.sub("", line).strip() for line in log.splitlines())


def templates(directory: Path, sizes: set[bool]) -> dict[bool, Path]:
    """Homes with data of these sizes, and with what Keras and Matplotlib leave in a home."""
    made = {full: directory / ("full" if full else "small") for full in sizes}
    for full, path in made.items():
        data.make(path, full)
        env = {"PATH": os.environ["PATH"], "HOME": str(path)}
        words = [sys.executable, "-c", "import keras, matplotlib.pyplot"]
        subprocess.run(words, env=env, check=True, capture_output=True)
    return made


def result(stories: Sequence[Story], whole: bool = True) -> report.Result:
    """The table and the bars; of the whole corpus, or of a part."""
    ran = [story for story in stories if story.ways]
    rows = tuple(
        (
            _label(story.name),
            f"{story.seconds:.0f} s",
            *(_cell(story.ways.get(way)) for way in WAYS),
        )
        for story in ran
    )
    table = report.Table(
        "public programs beside plain Python",
        ("program", "python", *WAYS),
        rows,
        (
            "=: the same exit code, output and files. w: started warm, c: cold. first: nothing is"
            " known of the program; second: with a learned lease.",
            *_started(ran),
        ),
    )
    verdicts = [verdict for story in ran for verdict in story.ways.values()]
    codes = sum(verdict.code != 0 for verdict in verdicts)
    unlike = sum(any(it.differences for it in story.ways.values()) for story in ran)
    died = sum(verdict.cause == "lease exceeded" for verdict in verdicts)
    bars = (
        report.Bar("programs", len(ran), 60 if whole else 1, "at least", "programs"),
        report.Bar("runs with another exit code", codes, 0, "at most", "runs"),
        report.Bar("programs with other output", unlike, 0, "at most", "programs"),
        report.Bar("deaths for want of memory", died, 0, "at most", "runs"),
    )
    failures = tuple(
        f"{story.name}: {story.words or f'exit code {story.code}'}"
        for story in stories
        if not story.ways
    )
    return report.Result("likeness", (table,), bars, {s.name: asdict(s) for s in ran}, failures)


def _started(stories: Sequence[Story]) -> list[str]:
    """How programs were started that nobody asked to be started cold, and why not warm."""
    hows = Counter(story.ways[way].how for story in stories for way in ("first", "second"))
    return [f"{count} runs: {how}" for how, count in hows.most_common()]


def _label(name: str) -> str:
    """Long enough to be found again."""
    return "/".join(name.split("/")[-2:])


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    how = verdict.how[:1]
    if verdict.code != 0:
        return f"{how} code {verdict.code}"
    count = len(verdict.differences)
    return f"{how} {f'≠{count}' if count else '='}".strip()


def _all(
    chosen: Sequence[tuple[Program, Sequence[str]]], copies: Path, lanes: int, longest: float
) -> list[Story]:
    work: queue.SimpleQueue[tuple[Program, Sequence[str]]] = queue.SimpleQueue()
    for one in chosen:
        work.put(one)
    stories: list[Story] = []

    def lane(home: Sandbox) -> None:
        bench = Bench(home, made, copies, import_log, longest)
        with contextlib.suppress(queue.Empty):
            while True:
                program, ways = work.get_nowait()
                try:
                    story = bench.story(program, ways)
                except (sources.Missing, OSError) as trouble:
                    story = Story(program.name, None, 0.0, words=str(trouble))
                stories.append(story)
                _tell(story)

    with contextlib.ExitStack() as stack:
        # The data are linked into the homes, so all are in one file system.
        directory = stack.enter_context(sandbox()).directory
        made = templates(directory, {program.full for program, _ in chosen})
        import_log = _import_log()
        homes = [stack.enter_context(sandbox()) for _ in range(lanes)]
        threads = [threading.Thread(target=lane, args=(home,), daemon=True) for home in homes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(stories, key=lambda story: story.name)


def _tell(story: Story) -> None:
    cells = "; ".join(
        f"{way} {_cell(it)} {it.peak >> 20}/{it.lease >> 20} MiB" for way, it in story.ways.items()
    )
    said = cells or story.words
    print(f"  {story.name}: python {story.code} {story.seconds:.0f} s {said}", file=sys.stderr)
    for way, verdict in story.ways.items():
        for difference in verdict.differences[:6]:
            print(f"      {way}: {difference}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the corpus; 1 if anything differs or a program could not be had."""
    parser = argparse.ArgumentParser(prog="python -m bench.likeness", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="git directories, owner+name")
    parser.add_argument("--list", type=Path, default=LIST, help="the programs; default: ours")
    parser.add_argument("--only", default="", help="a regular expression in the name")
    parser.add_argument("--lanes", type=int, default=1, help="so many programs at a time")
    parser.add_argument(
        "--longest", type=float, default=120, help="seconds; who takes longer is passed over"
    )
    asked = parser.parse_args()
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data.trust(Path(sysconfig.get_path("purelib")))
    chosen = [
        (program, list(WAYS)[: 4 if number % _EVERY == 0 else 3])
        for number, program in enumerate(programs(asked.list))
        if re.search(asked.only, program.name)
    ]
    facts = machine.facts()
    print(f"== likeness == {machine.line(facts)}\n", flush=True)
    found = result(_all(chosen, asked.corpus, asked.lanes, asked.longest), not asked.only)
    print(found.render())
    report.write(found.document(facts, bool(asked.only)))
    return int(bool(found.failures) or any(bar.met is False for bar in found.bars))


if __name__ == "__main__":
    sys.exit(main())
