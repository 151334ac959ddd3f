"""The keys of `sublet top`, pressed through Textual's own pilot; the views are made up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from textual.events import Key
from textual.pilot import Pilot

from sublet.client.snapshot_feed import View
from sublet.errors import BadRequest
from sublet.home import Home
from sublet.serving.metrics import Row
from sublet.top.app import TopApp
from sublet.top.job_list import JobList
from sublet.top.log_pane import LogPane
from sublet.top.news import Served
from sublet.top.panels import Panel
from sublet.top.screens import Question, Sheet
from sublet.units import GiB, MiB
from sublet.wire.messages import Verb
from sublet.wire.rows import DeviceRow, JobRow
from support.jobs import device
from support.rows import job_row

Steps = Callable[[Pilot[None]], Awaitable[None]]


class Acts:
    """A broker that notes what it is asked, and refuses to pause."""

    def __init__(self) -> None:
        self.asked: list[tuple[Verb, list[int]]] = []

    def __call__(self, verb: Verb, numbers: Sequence[int]) -> Sequence[str]:
        self.asked.append((verb, list(numbers)))
        if verb == "pause":
            raise BadRequest("It cannot be paused.", "It holds its lease itself.")
        return [f"#{number}: done" for number in numbers]


def view(*rows: JobRow, devices: int = 1) -> View:
    cards = [device(f"gpu{number}", 2 * GiB) for number in range(devices)]
    known = {card.id: DeviceRow(card, GiB, 0, 128 * MiB, GiB - 128 * MiB) for card in cards}
    return View(1, known, {row.id: row for row in rows})


RUNNING = job_row(1, "train.py", "running", now=300 * MiB, ceiling=GiB, device="gpu0")
WAITING = job_row(2, "big", "waiting", reason="needs 9 GiB")
ENDED = job_row(3, "tiny", "finished", cause="exited", code=0)
ARRAY = tuple(job_row(n, f"a[{n - 4}]", "waiting", array=4, reason="a queue") for n in (4, 5, 6))


class Application:
    """The application in a terminal of this size that nobody sees."""

    def __init__(self, root: Path, size: tuple[int, int] = (80, 24)) -> None:
        self.acts = Acts()
        self.app = TopApp(Home(root), act=self.acts)
        self.size = size

    def run(self, shown: View, steps: Steps) -> None:
        """Show this view and press keys."""

        async def session() -> None:
            async with self.app.run_test(size=self.size) as pilot:
                self.app.take(shown)
                await self.until(pilot, lambda: bool(self.text("title")))
                await steps(pilot)

        asyncio.run(session())

    async def until(self, pilot: Pilot[None], condition: Callable[[], bool]) -> None:
        """Let it go on until this is so."""
        deadline = time.monotonic() + 60
        while not condition():
            panels = [self.text(name) for name in ("title", "listing")]
            assert time.monotonic() < deadline, (panels, self.listed, self.acts.asked)
            await pilot.pause(0.02)

    def text(self, panel: str) -> str:
        return self.app.query_one(f"#{panel}", Panel).shown.plain

    @property
    def listed(self) -> list[int]:
        """The first jobs of all lines."""
        return [group[0].id for group in self.app.query_one(JobList)._groups]

    @property
    def chosen(self) -> list[int]:
        group = self.app.query_one(JobList).chosen
        return [row.id for row in group or ()]


@pytest.fixture
def top(tmp_path: Path) -> Application:
    return Application(tmp_path)


def test_jobs_are_cancelled_after_a_yes_and_a_refusal_is_shown(top: Application) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("j", "j", "c")
        await top.until(pilot, lambda: isinstance(top.app.screen, Question))
        await pilot.press("n")
        assert top.acts.asked == []
        await pilot.press("c", "y")
        await top.until(pilot, lambda: top.acts.asked == [("cancel", [4, 5, 6])])
        await pilot.press("p")
        await top.until(pilot, lambda: ("pause", [4, 5, 6]) in top.acts.asked)
        await top.until(
            pilot,
            lambda: any("cannot be paused" in one.message for one in top.app._notifications),
        )
        await pilot.press("G", "c")
        assert not isinstance(top.app.screen, Question), "a job that has ended"

    top.run(view(RUNNING, WAITING, ENDED, *ARRAY), steps)


def test_paused_jobs_are_resumed(top: Application) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await top.until(pilot, lambda: top.acts.asked == [("resume", [1])])

    top.run(view(job_row(1, "train.py", "paused", ceiling=GiB)), steps)


def test_the_list_is_sorted_filtered_and_searched_and_the_chosen_job_stays(
    top: Application,
) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await top.until(pilot, lambda: top.listed == [1, 2, 4, 3])
        await pilot.press("down")
        await top.until(pilot, lambda: top.chosen == [2])
        await pilot.press("S")
        await top.until(pilot, lambda: top.listed == [3, 4, 2, 1])
        await top.until(pilot, lambda: top.chosen == [2])
        await pilot.press("S", "f", "f")
        await top.until(pilot, lambda: top.text("listing") == "jobs only waiting")
        await top.until(pilot, lambda: top.listed == [2, 4])
        await pilot.press("f", "f", "slash", *"tiny", "enter")
        await top.until(pilot, lambda: top.listed == [3])
        assert top.text("listing") == "jobs with “tiny”"
        await pilot.press("slash", "x")
        await top.until(pilot, lambda: top.listed == [])
        await pilot.press("escape")
        await top.until(pilot, lambda: len(top.listed) == 4)

    top.run(view(RUNNING, WAITING, ENDED, *ARRAY), steps)


def test_the_chosen_job_stays_chosen_when_others_come_and_go(top: Application) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down")
        other = job_row(9, "other", "running", ceiling=GiB)
        top.app.take(view(RUNNING, other, WAITING))
        await top.until(pilot, lambda: top.listed == [1, 9, 2])
        await top.until(pilot, lambda: top.chosen == [2])
        top.app.take(view())
        await top.until(pilot, lambda: top.listed == [])
        await pilot.press("c", "p", "l", "enter", "down")
        assert top.acts.asked == []

    top.run(view(RUNNING, WAITING), steps)


def test_help_and_details_open_above_all_and_close(top: Application) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await top.until(pilot, lambda: isinstance(top.app.screen, Sheet))
        await pilot.press("escape", "enter")
        await top.until(pilot, lambda: isinstance(top.app.screen, Sheet))
        top.app.take(view(RUNNING))  # What is below is drawn again meanwhile.
        await top.until(pilot, lambda: top.listed == [1])
        await pilot.press("q")
        await top.until(pilot, lambda: not isinstance(top.app.screen, Sheet))
        await pilot.press("q")
        await top.until(pilot, lambda: not top.app.is_running)

    top.run(view(RUNNING, WAITING), steps)


def test_output_is_followed_while_it_grows_and_closed(top: Application, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "1.1.log"
    log.parent.mkdir()
    log.write_bytes(b"a\x1b[31mb\x1b[0m\r\x1b]0;title\x07c\x07d\n")

    async def steps(pilot: Pilot[None]) -> None:
        pane = top.app.query_one(LogPane)
        await pilot.press("l")
        await top.until(pilot, lambda: list(pane.lines)[:1] == ["c\ufffdd"])
        with log.open("ab") as file:
            file.write(b"more\n")
        await top.until(pilot, lambda: "more" in pane.lines)
        await pilot.press("l")
        await top.until(pilot, lambda: pane.follows is None and not pane.display)

    top.run(view(RUNNING, WAITING), steps)


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (20, 8)])
def test_every_device_has_a_bar_and_plots_go_from_one_to_the_next(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    top = Application(tmp_path, size)

    async def steps(pilot: Pilot[None]) -> None:
        assert all(f"gpu{number}" in top.text("devices") for number in range(4))
        if size == (20, 8):
            return
        await top.until(pilot, lambda: "gpu0" in top.text("plots"))
        await pilot.press("w", "d")
        await top.until(pilot, lambda: "gpu1" in top.text("plots").splitlines()[0])
        assert "-1 h" in top.text("plots")
        assert "gpu0" not in top.text("plots").splitlines()[0]

    top.run(view(RUNNING, devices=4), steps)


def test_served_models_come_and_go_and_fit_beside_the_list(tmp_path: Path) -> None:
    top = Application(tmp_path, (140, 30))
    names = ["the_same_beginning_" + 3 * end for end in "ab"]
    rows = [Row(name, 1, state="loaded", bytes=MiB, waiting=7, device="gpu0") for name in names]

    async def steps(pilot: Pilot[None]) -> None:
        before = len(top.text("plots").splitlines())
        top.app.on_served(Served(rows))
        await top.until(pilot, lambda: len(top.text("plots").splitlines()) < before)
        lines = top.text("models").splitlines()
        assert lines[0].split()[-2:] == ["requests", "queue"]
        assert all(line.endswith("7") and len(line) <= 60 for line in lines[1:])
        assert lines[1].split()[0] != lines[2].split()[0]
        top.app.on_served(Served([]))
        await top.until(pilot, lambda: len(top.text("plots").splitlines()) == before)

    top.run(view(RUNNING), steps)


def test_what_is_pasted_into_the_search_is_text_and_no_command(top: Application) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        driver = top.app._driver
        assert driver is not None
        for key in "/cy/pq":
            # All at once, before the first of them is looked at.
            driver.process_message(Key({"/": "slash"}.get(key, key), key))
        await top.until(pilot, lambda: top.text("listing") == "jobs with “cy/pq”")
        assert top.acts.asked == []

    top.run(view(RUNNING, WAITING), steps)
