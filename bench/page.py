"""The page in a real browser, with a thousand jobs and a day of history; and what history costs.

The day is recorded into the broker's history before it serves, a sample a second. Everything else
is as it always is: a real broker, real jobs, `sublet ui`, Chromium. The page is open on all rows.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sin

from bench import figures, processes
from bench.browser import Browser, browser, find_browser
from bench.report import Bar, Result, Table
from bench.sandbox import ROOT, SUBLET, Sandbox, sandbox
from sublet.broker.usage_history import UsageHistory
from sublet.client.jobs import act, submit_array
from sublet.units import GiB, MiB
from sublet.wire.rows import HoldingRow, LeaseEventKind, LeaseEventRow, UsageRow

_MB = 1e6
_DAY = 86_400
_CAPACITY = 8 * GiB
_JOBS = 1000
_NAMES = ("resnet50", "bert-base", "unet", "mlp-sweep", "tokenize", "evaluate", "gan", "notebook")
_WATCH = """
const begin = setInterval(() => {
  if (!document.body) return;
  const bands = document.querySelectorAll('.plot .band').length;
  const rows = document.querySelectorAll('tr[data-job]').length;
  if (bands && rows >= 200) { window.drawnAt = performance.now(); clearInterval(begin); }
}, 5);
"""


@dataclass(frozen=True)
class Figures:
    """All that was measured, in seconds and bytes."""

    paints: Sequence[float]
    """From opening the page to the first that is seen."""
    drawn: Sequence[float]
    """From opening the page to the plot and 200 rows."""
    updates: Sequence[float]
    """From before a job is cancelled to its row."""
    sizes: Mapping[str, int]
    """Bytes that the page loads."""
    week: Sequence[int]
    """What a process holds (RSS) after each day of a week of samples each second."""
    shares: Mapping[str, float]
    """The share of a core that the broker used."""


def measure(quick: bool) -> Result:
    """Open the page a few times, cancel some jobs, watch the broker; record a week."""
    path = find_browser()
    if path is None:
        raise processes.Failed("there is no Chromium here: `make browser` installs Debian's")
    over = 3.0 if quick else 20.0
    week = _week(1 if quick else 7)
    shares = {}
    with sandbox() as home:
        home.env["SUBLET_CPU_MEMORY"] = f"{_CAPACITY}B"
        with home.entered():
            pid = home.status()["pid"]
            shares["nothing runs"] = _share(pid, over)
            submit_array(["sleep", "100000"], (), memory="1GiB")
            shares["one job holds a lease"] = _share(pid, over)
    with sandbox() as home:
        home.env["SUBLET_CPU_MEMORY"] = f"{_CAPACITY}B"
        with home.entered(), _broker(home), _page(home) as link:
            pid = home.status()["pid"]
            submit_array(["sleep", "100000"], range(_JOBS), memory="1GiB")
            shares[f"{_JOBS} jobs, no page open"] = _share(pid, over)
            with browser(path, home.directory / "profile") as tab:
                paints, drawn, sizes = _open(tab, link, 3 if quick else 11)
                updates = [_update(tab, number) for number in range(_JOBS, _JOBS - 20, -1)]
                shares[f"{_JOBS} jobs, the page is open"] = _share(pid, over)
    return result(Figures(paints, drawn, updates, sizes, week, shares))


def result(measured: Figures) -> Result:
    """The tables and the bars for these figures."""
    spans = {
        "first paint": measured.paints,
        "plot and 200 rows": measured.drawn,
        "a change, on the page": measured.updates,
    }
    times = Table(
        f"the page, with {_JOBS} jobs and a day of history",
        ("what", "times", "least", "median", "most"),
        tuple(
            (
                what,
                str(len(values)),
                *(figures.seconds(f(values)) for f in (min, figures.median, max)),
            )
            for what, values in spans.items()
        ),
        tuple(f"{name}: {size / 1e3:.0f} kB" for name, size in measured.sizes.items()),
    )
    week = Table(
        "a process that records a sample a second of 8 jobs, by simulated days",
        ("day", "RSS MB"),
        tuple((str(day), f"{size / _MB:.1f}") for day, size in enumerate(measured.week)),
    )
    shares = Table(
        "the broker",
        ("while", "of a core"),
        tuple((name, f"{share * 100:.2f} %") for name, share in measured.shares.items()),
    )
    growth = (measured.week[-1] - measured.week[len(measured.week) // 2]) / _MB
    bars = (
        Bar("first paint, most", max(measured.paints) * 1000, 1000, "at most", "ms"),
        Bar("plot and 200 rows, most", max(measured.drawn) * 1000, 1000, "at most", "ms"),
        Bar("a change, on the page, most", max(measured.updates) * 1000, 1000, "at most", "ms"),
        Bar("growth in the second half of a week", growth, 1, "at most", "MB"),
    )
    samples = {
        "paints": list(measured.paints),
        "drawn": list(measured.drawn),
        "updates": list(measured.updates),
        "sizes": dict(measured.sizes),
        "week": list(measured.week),
        "shares": dict(measured.shares),
    }
    return Result("page", (times, week, shares), bars, samples)


def _open(
    tab: Browser, link: Callable[[], str], times: int
) -> tuple[list[float], list[float], dict[str, int]]:
    """Open the page again and again, the last time with a day in the plot and all rows."""
    tab.resize(1280, 900)
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    paints, drawn = [], []
    tab.open(link())
    for _ in range(times):
        drawn.append(tab.wait_for("window.drawnAt") / 1000)
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        paints.append(tab.wait_for(paint) / 1000)
        sizes = {
            "history": "(await (await fetch('api/history')).arrayBuffer()).byteLength",
            "script and style": "performance.getEntriesByType('resource').filter(one => "
            "/(js|css)$/.test(one.name)).reduce((sum, one) => sum + one.decodedBodySize, 0)",
        }
        found = {what: int(tab.run(f"(async () => {script})()")) for what, script in sizes.items()}
        tab.call("Page.reload")
    tab.wait_for("window.drawnAt")
    tab.run("document.querySelectorAll('.ranges button')[3].click()")
    tab.run("document.querySelector('.more').click()")
    tab.wait_for(f"document.querySelectorAll('tr[data-job]').length >= {_JOBS}")
    return paints, drawn, found


def _update(tab: Browser, number: int) -> float:
    """Cancel a job that waits; the seconds until its row says so."""
    row = f"document.querySelector('tr[data-job=\"{number}\"]')"
    tab.run(
        f"window.seenAt = null; window.looks = setInterval(() => {{ if ({row}?.classList.contains("
        "'state-cancelled')) { window.seenAt = Date.now(); clearInterval(window.looks); } }, 5)"
    )
    began = time.time()
    act("cancel", [number])
    return float(tab.wait_for("window.seenAt")) / 1000 - began


def _share(pid: int, seconds: float) -> float:
    """The share of a core that a process uses."""
    before = processes.cpu_seconds(pid)
    time.sleep(seconds)
    return (processes.cpu_seconds(pid) - before) / seconds


def _week(days: int) -> list[int]:
    """Record so many days; what the process holds after each."""
    code = f"from bench.page import record_days; record_days({days})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [int(size) for size in done.stdout.split()]


def record_days(days: int) -> None:
    """Record a sample a second of jobs that never stand still, and print what that takes."""
    history = UsageHistory()
    names = {number: f"train-{number}.py" for number in range(1, 9)}
    for second in range(days * _DAY + 1):
        if second % _DAY == 0:
            print(processes.rss(os.getpid()), flush=True)
        held = tuple(HoldingRow(job, GiB, (second * job * 4096) % GiB) for job in names)
        history.record("cpu", UsageRow(2e9 + second, second % MiB, 0, held), names)


@contextmanager
def _broker(home: Sandbox) -> Iterator[None]:
    """A broker that has been at work for a day, as far as its history goes."""
    code = "from bench.page import run_broker; run_broker()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=home.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise processes.Failed("the broker did not start")
        yield
    finally:
        process.kill()
        process.wait()


def run_broker() -> None:
    """Be that broker."""
    from sublet.broker.__main__ import _open
    from sublet.broker.lock import only_broker
    from sublet.home import Home

    home = Home.find()
    home.make()
    with only_broker(home):
        broker, _ = _open(home)
        record_a_day(broker.recorder.history, time.time(), _DAY)
        print("ready", flush=True)
        broker.run()


def record_a_day(history: UsageHistory, until: float, seconds: int, first: int = 100_000) -> None:
    """Programs that come, grow, run out of memory and go, until this moment."""
    ends: tuple[LeaseEventKind, ...]
    ends = ("ended", "ended", "ended", "out of memory", "ended", "failed", "preempted", "ended")
    for second in range(seconds):
        at = until - seconds + second
        held, names = [], {}
        for slot, name in enumerate(_NAMES):
            length = 1800 + 700 * slot
            turn, age = divmod(second + 997 * slot, length)
            job = first + 8 * turn + slot
            rests = (turn + slot) % 4 == 3
            charge = int((0.4 + 0.15 * ((slot + turn) % 4)) * GiB)
            if rests:
                continue
            wave = 0.06 * sin(age / (40 + 5 * slot))
            used = int(charge * min(0.94, 0.2 + 0.8 * age / 600 + wave))
            held.append(HoldingRow(job, charge, max(0, used)))
            names[job] = f"{name}-{turn}"
            kind: LeaseEventKind | None = "granted" if age == 0 else None
            if age == length - 1:
                kind = ends[(turn + slot) % len(ends)]
            if kind is not None:
                history.note(LeaseEventRow(at, "cpu", job, names[job], 1, kind, charge))
        others = int((0.6 + 0.3 * sin(second / 5000)) * GiB)
        history.record("cpu", UsageRow(at, others, 300 * MiB, tuple(held)), names)


@contextmanager
def _page(home: Sandbox) -> Iterator[Callable[[], str]]:
    """`sublet ui`; a function that makes links to it."""
    process = subprocess.Popen(
        [SUBLET, "ui", "--port", "0"], env=home.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield lambda: _link(home)
    finally:
        process.terminate()
        process.wait()


def _link(home: Sandbox) -> str:
    done = subprocess.run(
        [SUBLET, "ui"], env=home.env, capture_output=True, text=True, check=True, timeout=60
    )
    return str(done.stdout.split()[0])
