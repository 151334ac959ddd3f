"""`sublet ui` as a user meets it: the link, what the page shows, what it does, and how it ends."""

import contextlib
import http.client
import json
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.browser import browser, find_browser
from sublet.home import Home
from sublet.sweeps import reading
from sublet.sweeps.journal import Journal
from sublet.sweeps.records import EpochEnded, Settings, SweepEnded, TrialBegan, TrialEnded
from support.sandbox import Sandbox, wait_for

HOSTILE = "<img src=x onerror=alert(1)>"
PROGRAM = rf"""
echo 'one line'
printf '%s\033[31m \342\200\256\n' '{HOSTILE}'
exec sleep 600
"""

# Four steps of ten seconds: of the first the fullest moment, then what holds on.
THINNED = """import(location.pathname + "bands.js").then((bands) => bands.thin(
  [[0, 0, 0, []], [5, 1, 0, []], [5.5, 0, 0, []], [20, 0, 0, []]], 0, 40, 4,
).map((row) => row[0]))"""


# As Keras' callback writes it, as TensorFlow 1 does, and for nobody on this machine.
WRITES_SCALARS = """
import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import Summary, SummaryMetadata
metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
for name, factor in (("train", 1.0), ("validation", 2.0)):
    with tf.summary.create_file_writer(f"logs/{name}").as_default():
        for step in range(20):
            tf.summary.write("epoch_loss", factor / (step + 1), step, metadata)
            tf.summary.write("words", "text", step)
with tf.Graph().as_default():
    with tf.compat.v1.summary.FileWriter("logs/old") as writer:
        for step in range(3):
            values = [Summary.Value(tag="lr", simple_value=0.25), Summary.Value(tag="none")]
            writer.add_summary(Summary(value=values), step)
"""


class SignedIn:
    """A client that has opened the link."""

    def __init__(self, link: str) -> None:
        self.address = urlsplit(link)
        assert self.address.hostname == "127.0.0.1"
        with contextlib.closing(self._connect()) as connection:
            connection.request("GET", f"{self.address.path}?{self.address.query}")
            answer = connection.getresponse()
            assert answer.status == 303, answer.read()
            self.base = answer.headers["Location"]
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.headers = {"Cookie": cookie, "Origin": f"http://{self.address.netloc}"}

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(str(self.address.hostname), self.address.port, timeout=60)

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        with contextlib.closing(self._connect()) as connection:
            connection.request(method, f"{self.base}api/{path}", headers=self.headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    @contextlib.contextmanager
    def news(self) -> Iterator[Iterator[dict[str, Any]]]:
        """What a page hears."""
        with contextlib.closing(self._connect()) as connection:
            connection.request("GET", f"{self.base}api/live", headers=self.headers)
            answer = connection.getresponse()
            assert answer.headers.get_content_type() == "text/event-stream"
            yield (
                json.loads(line.removeprefix(b"data: "))
                for line in iter(answer.readline, b"")
                if line.startswith(b"data: ")
            )


def start_ui(sandbox: Sandbox) -> tuple["subprocess.Popen[str]", str]:
    process = sandbox.start("ui", "--port", "0")
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    if not link.startswith("http"):
        process.kill()
        raise AssertionError(process.communicate())
    return process, link


@pytest.fixture
def page(new_sandbox: Callable[..., Sandbox]) -> Iterator[tuple[Sandbox, str]]:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="4GiB")
    process, link = start_ui(sandbox)
    yield sandbox, link
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), out
    assert not (sandbox.home / "page.json").exists()


def submit(sandbox: Sandbox, name: str) -> int:
    program = sandbox.write("long.sh", PROGRAM)
    words = ("submit", "--memory", "100MiB", "--name", name, "--", "sh", str(program))
    out = sandbox.sublet(*words, check=True).stdout
    return int(re.findall(r"#(\d+)", out)[0])


def make_sweep(sandbox: Sandbox) -> None:
    """A sweep that has ended, with four trials, the best first; the last has failed."""
    home = Home(sandbox.home)
    settings = Settings(
        "models", "build", {"lr": [0.1], HOSTILE: ["a"]}, "grid", "loss", "min", 3, 4, 0
    )
    directory = reading.enter(home, name := reading.new_id(), None)
    journal = Journal.open(directory, name, HOSTILE, settings)
    for number in range(4):
        journal.append([TrialBegan(number, {"lr": 0.1 * number, HOSTILE: "ab"[number % 2]}, 1.0)])
        if number == 3:
            journal.append([TrialEnded(number, "failed", 2.0, error=f"diverged {HOSTILE}")])
            continue
        logs = [EpochEnded(number, epoch, {"loss": number + 1 / epoch}, 1.0) for epoch in (1, 2, 3)]
        journal.append([*logs, TrialEnded(number, "done", 2.0)])
    journal.append([SweepEnded(3.0)])
    journal.close()


def test_the_page_shows_a_job_and_cancels_it(page: tuple[Sandbox, str]) -> None:
    sandbox, link = page
    file = sandbox.home / "page.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = sandbox.sublet("ui", check=True).stdout.splitlines()[0]
    assert again.partition("?")[0] == link.partition("?")[0]
    client = SignedIn(again)
    with client.news() as news:
        first = next(news)
        assert first["broker"]
        assert [row["device"]["id"] for row in first["devices"]] == ["cpu"]
        number = submit(sandbox, HOSTILE)
        states = (row for one in news for row in one.get("jobs", ()) if row["id"] == number)
        assert next(row for row in states if row["state"] == "running")["name"] == HOSTILE
        lines = wait_for(lambda: _lines(client, number), "its output is there")
        assert lines == ["one line", HOSTILE + " \ufffd"]
        status, shown = client.ask(f"jobs/{number}")
        assert (status, shown["job"]["name"], shown["attempts"][0]["number"]) == (200, HOSTILE, 1)
        assert any("--memory 100 MiB" in line for line in shown["explanation"])
        assert client.ask(f"jobs/{number}/cancel", "POST")[0] == 200
        assert next(row for row in states if row["state"] == "finished")["cause"] == "cancelled"
    _, history = client.ask("history")
    events = [(event["kind"], event["name"]) for event in history["events"]]
    assert events == [("granted", HOSTILE), ("cancelled", HOSTILE)]
    assert client.ask(f"jobs/{number}/pause", "POST")[0] == 400
    status, refusal = client.ask("jobs/999")
    assert (status, refusal["message"]) == (400, "There is no job 999.")
    assert client.ask("models") == (200, {"rows": [], "fault": ""})


def _lines(client: SignedIn, number: int) -> list[str] | None:
    _, piece = client.ask(f"jobs/{number}/log?attempt=1")
    return piece["lines"] if piece and len(piece["lines"]) == 2 else None


def test_a_page_is_told_when_the_broker_ends_and_starts_none(page: tuple[Sandbox, str]) -> None:
    sandbox, link = page
    client = SignedIn(link)
    with client.news() as news:
        assert next(news)["broker"]
        sandbox.sublet("down", check=True)
        assert not next(one for one in news if not one["broker"])["broker"]
        assert client.ask("history") == (200, None)
        assert "no broker" in sandbox.sublet("down").stdout
        sandbox.sublet("status", check=True)
        back = next(one for one in news if one["broker"])
        assert back["whole"]


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(page: tuple[Sandbox, str]) -> None:
    sandbox, link = page
    (sandbox.home / "page.json").write_text("not what it was")
    answer = sandbox.sublet("ui", "--port", str(urlsplit(link).port))
    assert answer.returncode == 2
    assert "--port 0" in answer.stderr
    (sandbox.home / "page.json").unlink()


def test_without_its_packages_one_line_says_what_to_install(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox()
    program = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['sublet', 'ui'];"
        "from sublet.cli import main; sys.exit(main())"
    )
    answer = sandbox.python("-c", program)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "sublet: The page needs uvicorn, which is not installed.",
        "        pip install 'sublet[ui]'",
    ]


def test_a_browser_shows_memory_and_jobs_and_cancels_one(
    page: tuple[Sandbox, str], tmp_path: Path
) -> None:
    found = find_browser()
    if found is None:
        pytest.skip("there is no Chromium here: `make browser` installs Debian's, as root")
    sandbox, link = page
    number = submit(sandbox, HOSTILE)
    with browser(found, tmp_path / "profile") as tab:
        tab.resize(1280, 900)
        tab.open(link)
        tab.wait_for("document.querySelector('#connection.live')")
        assert tab.run("location.search") == ""
        assert tab.run("document.cookie") == ""
        # The job is in the plot and in the table; its name is text.
        tab.wait_for(f"document.querySelector('.plot [data-job=\"{number}\"] .lease')")
        row = f"document.querySelector('tr[data-job=\"{number}\"]')"
        assert tab.wait_for(f"{row}.querySelector('.c-name').textContent") == HOSTILE
        assert tab.run("document.querySelectorAll('main img').length") == 0
        tab.wait_for(f"{row}.classList.contains('state-running')")
        assert tab.run(THINNED) == [5, 5.5, 20, 20]
        # By keys alone: search, choose, open.
        tab.press("/")
        tab.wait_for("document.activeElement.type === 'search'")
        tab.run("document.activeElement.value = 'onerror'")
        tab.press("Escape")
        tab.press("j")
        tab.wait_for(f"{row}.classList.contains('selected')")
        tab.press("Enter")
        tab.wait_for(f"document.querySelector('.log')?.textContent.includes({HOSTILE!r})")
        # Nothing is done before it was confirmed.
        tab.press("c")
        tab.wait_for("document.querySelector('#confirm').open")
        tab.run("document.querySelector('#confirm-no').click()")
        tab.wait_for("!document.querySelector('#confirm').open")
        tab.press("c")
        tab.wait_for("document.querySelector('#confirm').open")
        tab.run("document.querySelector('#confirm-yes').click()")
        tab.wait_for("document.querySelector('.job-facts').textContent.includes('cancelled')")
        # A sweep: its trials, by keys alone.
        make_sweep(sandbox)
        tab.run("location.hash = '#/sweeps'")
        tab.wait_for("document.querySelector('tbody a')")
        assert tab.run("document.querySelector('tbody bdi').textContent") == HOSTILE
        tab.run("document.querySelector('tbody a').click()")
        tab.wait_for("document.querySelectorAll('.coordinates polyline').length === 3")
        tab.wait_for("document.querySelectorAll('.lines .curve polyline').length === 3")
        tab.press("j")
        tab.press("j")
        tab.wait_for("document.querySelector('.coordinates .chosen')?.dataset.trial === '1'")
        assert "diverged" in tab.run("document.querySelector('.trials').textContent")
        tab.resize(390, 800, dark=True)
        tab.wait_for("document.documentElement.scrollWidth <= 390")
        tab.run("location.hash = '#/sweep/none'")
        tab.wait_for("document.querySelector('main').textContent.includes('There is no sweep')")
        tab.faults.clear()  # The refusal.
        # A narrow window has no part that is out of sight.
        tab.run("location.hash = '#/'")
        tab.wait_for(f"{row}?.classList.contains('state-cancelled')")
        assert tab.run("document.documentElement.scrollWidth") <= 390
        # The broker goes and comes back, and the page with it.
        sandbox.sublet("down", check=True)
        tab.wait_for("document.querySelector('#connection.down')")
        sandbox.sublet("status", check=True)
        tab.wait_for("document.querySelector('#connection.live')")
        assert tab.faults == []


def test_learning_curves_of_a_program_are_on_its_page(
    page: tuple[Sandbox, str], tmp_path: Path
) -> None:
    sandbox, link = page
    script = sandbox.write("writes.py", WRITES_SCALARS)
    sandbox.sublet("run", "--memory", "200MiB", str(script), check=True)
    again = sandbox.sublet("ui", check=True).stdout.splitlines()[0]
    status, found = SignedIn(again).ask("jobs/1/scalars?attempt=1")
    assert (status, found["faults"]) == (200, [])
    assert [Path(one).name for one in found["directories"]] == ["train", "validation", "old"]
    curves = {
        (row["tag"], curve["run"]): [point[:2] for point in curve["points"]]
        for row in found["tags"]
        for curve in row["curves"]
    }
    assert curves["lr", "old"] == [[0, 0.25], [1, 0.25], [2, 0.25]]
    assert [step for step, _ in curves["epoch_loss", "train"]] == list(range(20))
    assert curves["epoch_loss", "validation"][19][1] == pytest.approx(0.1)
    assert len(curves) == 3
    if (chromium := find_browser()) is None:
        return
    with browser(chromium, tmp_path / "profile") as tab:
        tab.resize(390, 800)
        tab.open(link)
        tab.wait_for("document.querySelector('#connection.live')")
        tab.run("location.hash = '#/job/1'")
        tab.wait_for("document.querySelectorAll('.plots .curve polyline').length === 3")
        names = "[...document.querySelectorAll('.plots .legend bdi')].map((one) => one.textContent)"
        assert tab.run(names) == ["train", "validation"]
        assert tab.run("document.documentElement.scrollWidth") <= 390
        # The plots are read by keys alone.
        tab.run("document.querySelector('.plots svg').focus()")
        tab.press("ArrowLeft")
        tab.wait_for("document.querySelector('.plots .tip').textContent.includes('step 19')")
        assert tab.faults == []
