"""Whether leases size themselves: the second run's lease beside its peak, and a probe's interval.

Every program of examples/programs, under `auto`, in rounds; each round begins with an empty ledger,
so that its second run rests on one run only.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import figures, processes
from bench.report import Bar, Result, Table
from bench.sandbox import ROOT, SUBLET, Sandbox, sandbox

_MiB = 2**20
_PROGRAMS = sorted((ROOT / "examples" / "programs").glob("*.py"))
_QUICK = ("accumulation", "gru", "xla")
_SMALLEST = 8 * _MiB
"""No lease is smaller, so a peak below has no say in how tight leases are."""
_PATIENCE = 120
"""A run that takes longer hangs, and counts as one that died."""
_HUNG = 124


@dataclass(frozen=True)
class Run:
    """One run under `auto`."""

    lease: int
    peak: int
    code: int


@dataclass(frozen=True)
class Forecast:
    """What a probe said before anything else was known."""

    expected: int
    low: int
    high: int


@dataclass(frozen=True)
class Story:
    """One program in one round: its probe, its first run, and those that followed."""

    forecast: Forecast | None
    runs: tuple[Run, ...]


Stories = Mapping[str, Sequence[Story]]


def measure(quick: bool) -> Result:
    """Rounds over all programs, so that a slow minute does not fall on one of them alone."""
    programs = [path for path in _PROGRAMS if not quick or path.stem in _QUICK]
    stories: dict[str, list[Story]] = {path.stem: [] for path in programs}
    failures: list[str] = []
    for _ in range(1 if quick else 3):
        with sandbox() as home:
            home.warm_up()
            for path in programs:
                try:
                    story = _story(home, path, 2 if quick else 3)
                except processes.Failed as trouble:
                    failures.append(f"{path.stem}: {trouble}")
                    continue
                stories[path.stem].append(story)
                leases = " ".join(
                    f"{run.lease // _MiB}/{run.peak / _MiB:.1f}" for run in story.runs
                )
                codes = [run.code for run in story.runs]
                known = story.forecast
                probe = f"{known.low / _MiB:.0f}..{known.high / _MiB:.0f}" if known else "-"
                print(f"  {path.stem}: probe {probe}; {leases} {codes}", file=sys.stderr)
    return result({name: known for name, known in stories.items() if known}, tuple(failures))


def result(stories: Stories, failures: tuple[str, ...] = ()) -> Result:
    """The table and the bars for these stories."""
    rows = []
    strict: list[float] = []
    worst, held, asked, died, counted = 0.0, 0, 0, 0, 0
    for name, rounds in sorted(stories.items()):
        later = [run for story in rounds for run in story.runs[1:]]
        seconds = [story.runs[1] for story in rounds]
        # What it may hold is the most that it was seen to hold: single runs vary.
        peak = max(run.peak for story in rounds for run in story.runs)
        ratio = max(run.lease for run in seconds) / max(1, peak)
        deaths = sum(run.code != 0 for run in later)
        forecasts = [story.forecast for story in rounds if story.forecast is not None]
        firsts = [story.runs[0].peak for story in rounds]
        inside = sum(t.low <= p <= t.high for t, p in zip(forecasts, firsts, strict=False))
        coarse = peak < _SMALLEST
        if not coarse:
            worst, counted = max(worst, ratio), counted + 1
            strict += [run.lease / max(1, run.peak) for run in seconds if run.code == 0]
        died += deaths
        asked += bool(forecasts)
        held += bool(forecasts) and 2 * inside > len(forecasts)
        rows.append(
            (
                name,
                f"{min(firsts) / _MiB:.1f}–{max(firsts) / _MiB:.1f}",
                f"{max(run.lease for run in seconds) // _MiB}",
                f"{peak / _MiB:.1f}",
                "–" if coarse else figures.times(ratio),
                f"{deaths} of {len(later)}",
                f"{forecasts[0].low // _MiB}–{-(-forecasts[0].high // _MiB)}" if forecasts else "–",
                f"{inside} of {len(forecasts)}" if forecasts else "–",
            )
        )
    table = Table(
        "leases that size themselves, in MiB",
        ("program", "first peak", "2nd lease", "peak", "lease", "died", "probe", "held"),
        tuple(rows),
        (
            "2nd lease: the largest that a second run was given, after one run. peak: the most"
            " that any run held. died: runs under a learned lease. probe: the interval of the"
            " first round; held: how often the first run's peak lay within it.",
            "–: a peak under 8 MiB, the smallest lease that is given.",
            f"At the most, a second lease was {figures.times(worst)} of the peak, and"
            f" {figures.times(max(strict, default=0.0))} of what that run held itself: leases are"
            " floors, and generous for small programs.",
        ),
    )
    bars = [
        Bar("programs that count", counted, 12, "at least", "programs"),
        Bar("deaths under a learned lease", died, 0, "at most", "runs"),
    ]
    if asked:
        share = 12 * held / asked
        bars.append(Bar("intervals that held, of each 12", share, 10, "at least", "probes"))
    samples = {name: [asdict(story) for story in forecasts] for name, forecasts in stories.items()}
    return Result("sizing", (table,), tuple(bars), samples, failures)


def _story(home: Sandbox, path: Path, count: int) -> Story:
    forecast = _probe(home, path)
    return Story(forecast, tuple(_run(home, path) for _ in range(count)))


def _probe(home: Sandbox, path: Path) -> Forecast | None:
    ran = subprocess.run(
        [SUBLET, "probe", "--json", "--forget", path],
        env=home.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    if ran.returncode != 0:
        return None
    document = json.loads(ran.stdout)
    return Forecast(document["expected"], document["low"], document["high"])


def _run(home: Sandbox, path: Path) -> Run:
    report = home.directory / "report.json"
    report.unlink(missing_ok=True)
    with contextlib.suppress(subprocess.TimeoutExpired), home.log.open("ab") as log:
        subprocess.run(
            [SUBLET, "run", "--quiet", "--report", report, path],
            env=home.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_PATIENCE,
            check=False,
        )
    if not report.exists():
        return Run(0, 0, _HUNG)
    document = json.loads(report.read_text())
    return Run(document["lease"] or 0, document["peak"] or 0, document["code"])
