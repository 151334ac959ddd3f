"""The demo's programs and its measuring, with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import race
from demo.__main__ import cannot_run
from demo.by_hand import why
from demo.catalogue import FOLDER, PROGRAMS
from demo.devices import Cpu, StandInCard
from demo.leased import Landlord
from demo.mark import Mark, by_owner
from demo.race import Entry, Finish, Race
from sublet.domain.memory import parse_memory
from sublet.units import MiB

pytestmark = pytest.mark.slow


@pytest.fixture
def mark() -> Iterator[Mark]:
    mark = Mark()
    yield mark
    mark.end()


def gone(word: str) -> None:
    """Return when no process has this word in its environment."""
    while [pid for pid in os.listdir("/proc") if pid.isdigit() and word in _environ(pid)]:
        time.sleep(0.01)


def _environ(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def run(mark: Mark, folder: Path, **codes: str) -> Race:
    environ = dict(os.environ)
    entries = [Entry(name, (sys.executable, "-c", code), environ) for name, code in codes.items()]
    return race.run(entries, Cpu(), mark, folder, lambda moment: None, len(entries))


def test_the_catalogue_names_every_program_once_and_asks_what_can_be_read() -> None:
    names = [program.name for program in PROGRAMS]
    assert sorted(names) == sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) == 20
    for program in PROGRAMS:
        for device in ("cpu", "gpu0"):
            parse_memory(program.asked(device))


def test_no_program_knows_of_sublet() -> None:
    for program in PROGRAMS:
        text = program.path.read_text()
        compile(text, str(program.path), "exec")
        assert "sublet" not in text.lower()


def test_a_race_tells_results_and_deaths_apart(mark: Mark, tmp_path: Path) -> None:
    finished = run(
        mark,
        tmp_path,
        fine="print('first'); print('last')",
        wrong="raise SystemExit(3)",
        killed="import os; os.kill(os.getpid(), 9)",
    )
    fine, wrong, killed = finished.finishes
    assert (fine.code, fine.result) == (0, "last")
    assert finished.deaths == (wrong, killed)
    assert (why(wrong), why(killed)) == ("exit code 3", "SIGKILL")


def test_memory_counts_grandchildren_and_ends_with_them(mark: Mark) -> None:
    """A child that hides in a session of its own is found by its mark, held against us, ended."""
    grandchild = "x = b'1' * (96 << 20); print(flush=True); input()"
    child = (
        "import subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', {grandchild!r}], start_new_session=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=mark.on(dict(os.environ)),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(mark.pids()) == 2
        assert sum(by_owner(Cpu().held(mark.pids()), {}).values()) > 96 * MiB
        mark.end()
        assert mark.pids() == set()


@pytest.mark.parametrize("kind", ["cpu", "standin"])
def test_programs_run_under_sublet_and_nothing_is_left(
    kind: str, mark: Mark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Cpu() if kind == "cpu" else StandInCard(tmp_path / "machine")
    chosen = tuple(p for p in PROGRAMS if p.name in ("tf1_session", "logical_devices"))
    monkeypatch.setattr("demo.leased.PROGRAMS", chosen)
    landlord = Landlord(tmp_path / "home", device, {**os.environ, **device.environ}, mark)
    try:
        finished, reports = landlord.run(tmp_path, lambda moment, snapshot: None)
    finally:
        landlord.close()
    assert finished.deaths == (), [finish.errors for finish in finished.deaths]
    assert set(reports) == {program.name for program in chosen}
    for report in reports.values():
        assert report.lease == 32 * MiB
        assert report.peak is not None
        assert report.peak <= report.lease
    # The nursery counts, though its environment has no mark: TensorFlow alone is more than this.
    # On a card each process has a context.
    assert 100 * MiB < finished.most <= device.capacity
    seen = {name for sample in finished.samples for name in sample.held}
    assert {"", *reports} == seen
    assert 0 < landlord.most_charged <= device.capacity
    gone(mark.word)


def test_what_the_processor_refuses_without_any_limit_is_not_held_against_sublet() -> None:
    refused = Finish("bfloat16", -signal.SIGILL, 1.0, 1.0, "", "")
    killed = Finish("large", -signal.SIGKILL, 1.0, 1.0, "", "")
    by_hand = Race((refused, killed), 1.0, 0, 2)
    assert cannot_run([by_hand]) == {"bfloat16"}
    assert cannot_run([]) == set()


def test_an_interrupted_demo_takes_everything_with_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "demo", "--sublet-only"],
        stdout=subprocess.DEVNULL,
        cwd=FOLDER.parent.parent,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as demo:
        while not list(tmp_path.glob("*/home/broker.sock")):
            assert demo.poll() is None
            time.sleep(0.01)
        demo.send_signal(signal.SIGINT)
        assert demo.wait() == 130
    gone(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
