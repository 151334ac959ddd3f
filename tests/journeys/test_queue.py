"""Jobs that wait and run on their own, through the real command."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sublet
from sublet.errors import BadRequest
from support.queue import HOLD, ended, reached, row, rows, said, shell, stands, submit
from support.sandbox import PATIENCE, SUBLET, Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def queue_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A home for jobs that are no Python programs: nothing has to be warm."""
    root = tmp_path_factory.mktemp("queue")
    made = Sandbox(root / "home", root / "work", SUBLET_CPU_MEMORY="4GiB")
    yield made
    made.close()


@pytest.fixture
def queue(queue_home: Sandbox, tmp_path: Path) -> Sandbox:
    mine = Sandbox(queue_home.home, tmp_path / "work")
    mine.environ = dict(queue_home.environ)
    return mine


def go(sandbox: Sandbox, name: str = "go") -> None:
    sandbox.write(name, "")


# One job, from its submission to its end.


def test_a_job_is_submitted_followed_and_waited_for(queue: Sandbox) -> None:
    answer = queue.sublet("submit", "--name", "two words", "sh", "-c", "echo out; echo err >&2")
    number = int(answer.stdout.split()[0].removeprefix("#"))
    assert f"sublet logs -f {number}" in answer.stdout
    assert queue.sublet("logs", "-f", str(number)).stdout == "out\nerr\n"
    waited = queue.sublet("wait", str(number))
    assert waited.returncode == 0
    assert "two words" in waited.stdout
    assert "done" in waited.stdout
    table = queue.sublet("ps", str(number)).stdout
    assert f"#{number}" in table
    now = row(queue, number)
    assert (now["state"], now["exit"], now["cause"]) == ("finished", 0, "exited")


@pytest.mark.every_python
def test_a_python_program_starts_warm_from_the_queue_and_outlives_its_terminal(
    sandbox: Sandbox,
) -> None:
    sandbox.write("train.py", "import tensorflow as tf\nprint(float(tf.reduce_sum(tf.ones([2]))))")
    number = submit(sandbox, "train.py")
    (last,) = ended(sandbox, number)
    assert (last["exit"], last["how"]) == (0, "warm")
    assert said(sandbox, number).endswith("2.0\n")


def test_logs_follow_a_job_while_it_runs(queue: Sandbox) -> None:
    number = shell(queue, f"echo first; {HOLD.format('go')}; echo last")
    follower = queue.start("logs", "-f", str(number))
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    assert follower.poll() is None
    go(queue)
    assert follower.communicate(timeout=PATIENCE)[0] == "last\n"
    assert follower.returncode == 0


def test_wait_says_the_first_code_that_is_not_0(queue: Sandbox) -> None:
    well, badly = shell(queue, "exit 0"), shell(queue, "exit 7")
    killed = shell(queue, "kill -9 $$")
    assert queue.sublet("wait", str(well)).returncode == 0
    assert queue.sublet("wait", f"{well}-{badly}").returncode == 7
    assert queue.sublet("wait", str(killed), str(badly)).returncode == 128 + 9
    assert "exit code 7" in row(queue, badly)["reason"]
    assert "signal 9" in row(queue, killed)["reason"]


def test_wait_gives_up_after_its_timeout_and_the_job_goes_on(queue: Sandbox) -> None:
    number = shell(queue, HOLD.format("go"))
    answer = queue.sublet("wait", "--timeout", "100ms", str(number))
    assert answer.returncode == 124
    assert "it keeps running" in answer.stderr
    reached(queue, number, "running")
    go(queue)
    assert queue.sublet("wait", str(number)).returncode == 0


def test_cancel_ends_what_runs_and_what_waits(queue: Sandbox) -> None:
    running = shell(queue, HOLD.format("never"))
    waiting = shell(queue, "echo never", "--after", str(running))
    reached(queue, running, "running")
    answer = queue.sublet("cancel", str(running), str(waiting), check=True)
    assert f"#{running} sh: stopping" in answer.stdout
    assert f"#{waiting} sh: cancelled before starting" in answer.stdout
    first, second = ended(queue, running, waiting)
    assert (first["cause"], second["cause"]) == ("cancelled", "cancelled")
    assert "cancelled" in queue.sublet("ps", str(running)).stdout


def test_a_program_in_a_terminal_that_somebody_cancels_says_so(queue: Sandbox) -> None:
    client = queue.start("run", "--name", "mine", "--memory", "64MiB", "sh", "-c", "sleep 100")

    def mine() -> list[int]:
        live = [one for one in rows(queue) if one["name"] == "mine" and one["state"] == "running"]
        return [one["id"] for one in live]

    (number,) = wait_for(mine, "it runs")
    queue.sublet("cancel", str(number), check=True)
    _, answer = client.communicate(timeout=PATIENCE)
    assert client.returncode == 128 + signal.SIGTERM
    assert "the program was ended: `sublet cancel`" in answer


def test_a_job_that_is_cancelled_at_once_never_runs_or_is_stopped(queue: Sandbox) -> None:
    """Whatever it was doing at that moment."""
    for _ in range(4):
        number = shell(queue, f"echo x >> ran; {HOLD.format('never')}")
        queue.sublet("cancel", str(number), check=True)
        (last,) = ended(queue, number)
        assert last["cause"] == "cancelled"


def test_a_job_that_runs_can_be_paused_and_goes_on_where_it_was(queue: Sandbox) -> None:
    number = shell(queue, "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i > count; done")
    wait_for((queue.work / "count").exists, "it counts")
    assert "keeps its lease" in queue.sublet("pause", str(number), check=True).stdout
    paused = reached(queue, number, "paused")
    assert paused["lease"] == 64 << 20
    wait_for(lambda: stands(queue, paused), "it stands still")
    before = (queue.work / "count").read_text()
    go(queue)
    assert row(queue, number)["state"] == "paused"
    assert (queue.work / "count").read_text() == before
    queue.sublet("resume", str(number), check=True)
    (last,) = ended(queue, number)
    assert (last["exit"], last["attempt"]) == (0, 1)


def test_a_job_that_waits_can_be_paused_and_starts_only_after_resume(queue: Sandbox) -> None:
    first = shell(queue, HOLD.format("go"))
    second = shell(queue, "echo x >> ran", "--after", str(first))
    queue.sublet("pause", str(second), check=True)
    go(queue)
    ended(queue, first)
    assert row(queue, second)["state"] == "paused"
    assert f"sublet resume {second}" in row(queue, second)["reason"]
    queue.sublet("resume", str(second), check=True)
    assert ended(queue, second)[0]["exit"] == 0
    assert (queue.work / "ran").read_text() == "x\n"


def test_a_finished_job_is_done_again_with_retry(queue: Sandbox) -> None:
    number = shell(queue, "echo x >> ran; [ -e go ]")
    assert ended(queue, number)[0]["exit"] == 1
    go(queue)
    answer = queue.sublet("retry", str(number), check=True)
    assert f"#{number} sh: back in the queue, attempt 2" in answer.stdout
    (last,) = ended(queue, number)
    assert (last["exit"], last["attempt"]) == (0, 2)
    assert (queue.work / "ran").read_text() == "x\nx\n"


def test_a_jobs_environment_is_forgotten_when_it_has_ended_and_retry_brings_another(
    queue: Sandbox,
) -> None:
    secret = "correct horse battery staple"
    mine = {**queue.environ, "API_KEY": secret, "RATE": "0.1"}
    script = 'printf "%s %s\\n" "$RATE" "$API_KEY" >> ran; [ -e go ]'
    answer = queue.sublet(
        "submit", "--json", "--memory", "64MiB", "--retries", "1", "sh", "-c", script, env=mine
    )
    number = int(json.loads(answer.stdout)["id"])
    wait_for(lambda: row(queue, number)["attempt"] == 2, "it waits for its next attempt")
    assert _found(queue.home, secret)
    assert ended(queue, number)[0]["exit"] == 1
    ran = queue.work / "ran"
    assert ran.read_text().splitlines() == [f"0.1 {secret}"] * 2
    wait_for(lambda: not _found(queue.home, secret), "its environment is gone from the disk")
    go(queue)
    later = queue.environ | {"API_KEY": "another"}
    answer = queue.sublet("retry", str(number), check=True, env=later)
    assert "attempt 3; not set any more: RATE" in answer.stdout
    assert ended(queue, number)[0]["exit"] == 0
    assert ran.read_text().splitlines()[-1] == " another"


def _found(home: Path, secret: str) -> list[Path]:
    """The files below a home that have this text, as it is or as records have it."""
    data = secret.encode()
    parts = [data, *(base64.b64encode(data[start:])[4:-8] for start in range(3))]
    found = []
    for path in home.rglob("*"):
        with contextlib.suppress(OSError):
            content = path.read_bytes() if path.is_file() else b""
            if any(part in content for part in parts):
                found.append(path)
    return found


# Jobs that wait for others.


def test_a_job_starts_after_those_it_names(queue: Sandbox) -> None:
    first = shell(queue, f"{HOLD.format('go')}; echo first >> order; exit 3")
    second = shell(queue, "echo second >> order", "--after", str(first))
    assert row(queue, second)["reason"] == f"after #{first}"
    go(queue)
    assert [one["exit"] for one in ended(queue, first, second)] == [3, 0]
    assert (queue.work / "order").read_text() == "first\nsecond\n"


def test_a_dependent_of_a_failed_job_is_not_started_and_says_why(queue: Sandbox) -> None:
    first = shell(queue, f"{HOLD.format('go')}; exit 3")
    second = shell(queue, "echo x >> ran", "--after-ok", str(first))
    third = shell(queue, "echo x >> ran", "--after-ok", str(second))
    go(queue)
    _, two, three = ended(queue, first, second, third)
    assert two["reason"] == f"not started: #{first} did not succeed (exit code 3)"
    assert three["reason"] == f"not started: #{second} did not succeed (not started)"
    assert (two["cause"], two["attempt"]) == ("dependency", 1)
    assert not (queue.work / "ran").exists()
    # All of them again, in one word.
    queue.write("ok", "")
    answer = queue.sublet("retry", f"{second}-{third}")
    assert answer.returncode == 2
    assert "did not succeed" in answer.stderr
    assert [one["state"] for one in rows(queue, second, third)] == ["finished"] * 2
    queue.sublet("retry", f"{first}-{third}", check=True)
    assert [one["exit"] for one in ended(queue, first, second, third)] == [3, 143, 143]


def test_an_array_is_one_job_for_each_index_some_at_a_time(queue: Sandbox) -> None:
    script = f"echo {{index}}-$SUBLET_ARRAY_INDEX >> began; {HOLD.format('go')}; exit {{index}}"
    answer = queue.sublet(
        "submit", "--json", "--memory", "64MiB", "--array", "1-4%2", "sh", "-c", script
    )
    numbers = json.loads(answer.stdout)["ids"]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    wait_for(lambda: _lines(queue, "began") == ["1-1", "2-2"], "the first two run")
    assert row(queue, numbers[3])["reason"] == "array limit: 2 at a time"
    assert row(queue, numbers[2])["name"] == "sh[3]"
    go(queue)
    assert [one["exit"] for one in ended(queue, *numbers)] == [1, 2, 3, 4]
    assert _lines(queue, "began") == ["1-1", "2-2", "3-3", "4-4"]


def _lines(sandbox: Sandbox, name: str) -> list[str]:
    path = sandbox.work / name
    return sorted(path.read_text().split()) if path.exists() else []


# How jobs end, and what follows.


def test_a_job_is_ended_at_its_time_limit_with_a_warning_first(queue: Sandbox) -> None:
    script = "trap 'echo warned' TERM; while :; do sleep 0.02; done"
    number = shell(queue, script, "--time", "4s", "--grace", "2s")
    (last,) = ended(queue, number)
    assert last["cause"] == "time limit"
    assert "warned" in said(queue, number)
    assert last["exit"] == 128 + signal.SIGKILL
    assert "time limit of 4.0 s\n" in queue.sublet("ps", str(number)).stdout


def test_a_job_that_asks_for_it_is_started_again(queue: Sandbox) -> None:
    """By exit code 42, at once, without being asked for retries."""
    number = shell(queue, "echo x >> ran; [ $(wc -l < ran) -eq 2 ] || exit 42")
    (last,) = ended(queue, number)
    assert (last["exit"], last["attempt"]) == (0, 2)
    once = shell(queue, "exit 42", "--no-requeue")
    assert ended(queue, once)[0]["exit"] == 42


def test_a_crash_loop_stops_and_says_so(queue: Sandbox) -> None:
    number = shell(queue, "echo x >> ran; exit 42")
    (last,) = ended(queue, number)
    assert (last["exit"], last["attempt"]) == (42, 3)
    assert "a crash loop: it ended 3 times in the same way" in last["reason"]
    assert (queue.work / "ran").read_text() == "x\n" * 3


def test_a_failure_is_tried_again_after_a_while_as_often_as_was_asked_for(api: Sandbox) -> None:
    number = shell(api, "echo x >> ran; [ $(wc -l < ran) -eq 2 ] || exit 3", "--retries", "2")
    job = sublet.Job(number)
    # Asked from here, as a command may take longer to start than the next attempt waits.
    now = wait_for(lambda: [one for one in [job.status()] if one.attempt == 2], "it failed")
    assert now[0].reason.startswith("exit code 3, retry 1 of 2 in 5.0 s")
    # Who does not want to wait for that need not.
    job.pause()
    job.resume()
    (last,) = ended(api, number)
    assert (last["exit"], last["attempt"]) == (0, 2)


def test_what_a_program_leaves_running_ends_with_it(queue: Sandbox) -> None:
    """Also what has gone into a session of its own."""
    number = shell(queue, "setsid sleep 1000 & sleep 1000 & exit 0")
    (last,) = ended(queue, number)
    assert last["exit"] == 0
    assert not [words for words in queue.processes().values() if words.startswith("sleep 1000")]


def test_a_broker_with_nothing_to_do_sleeps(queue: Sandbox) -> None:
    """Also after it has learned from a run, with nobody waiting."""
    assert [one["exit"] for one in ended(queue, shell(queue, "exit 0"))] == [0]
    process = psutil.Process(queue.status()["pid"])

    def asleep() -> bool:
        """Whether it did nothing at all for a while."""
        before = process.cpu_times()[:2]
        time.sleep(0.5)
        return process.cpu_times()[:2] == before

    wait_for(asleep, "the broker sleeps")


def test_a_job_that_waited_for_another_of_the_same_program_is_sized_by_it(sandbox: Sandbox) -> None:
    sandbox.write("same.py", "import tensorflow as tf; x = tf.zeros([1024, 1024])")
    first = submit(sandbox, "same.py", memory="auto")
    second = submit(sandbox, "--after", str(first), "same.py", memory="auto")
    before, after = ended(sandbox, first, second)
    assert (before["exit"], after["exit"]) == (0, 0)
    assert "no earlier run" in before["basis"]
    assert before["peak"] <= after["lease"] <= 128 << 20


# Who goes first.


def test_priority_decides_who_starts_first(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    holder = shell(sandbox, HOLD.format("go"), memory="550MiB")
    reached(sandbox, holder, "running")
    numbers = [
        shell(sandbox, f"echo {priority} >> order", "-p", priority, memory="550MiB")
        for priority in ("low", "normal", "high")
    ]
    assert "needs 550 MiB" in row(sandbox, numbers[0])["reason"]
    go(sandbox)
    assert [one["exit"] for one in ended(sandbox, *numbers)] == [0, 0, 0]
    assert (sandbox.work / "order").read_text().split() == ["high", "normal", "low"]


def test_of_many_that_a_broker_leaves_waiting_the_first_are_named_and_the_others_counted(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    holder = shell(sandbox, HOLD.format("go"), memory="550MiB")
    reached(sandbox, holder, "running")
    first = submit(sandbox, "--array", "1-30", "true", memory="550MiB")
    answer = sandbox.sublet("down", "--stop", check=True).stdout
    assert f"#{first + 9} true[10]: stays in the queue" in answer
    assert f"#{first + 10} " not in answer
    assert "20 more stay in the queue" in answer


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a part needs two processors")
def test_an_opportunistic_job_leaves_processors_to_a_guaranteed_one_while_that_one_works(
    new_sandbox: NewSandbox,
) -> None:
    """A paused one does not work."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    every = os.sched_getaffinity(0)
    polite = shell(sandbox, HOLD.format("go"), "--opportunistic")
    pid = reached(sandbox, polite, "running")["pid"]
    os.mkfifo(sandbox.work / "work")
    worker = shell(sandbox, "read word < work; while :; do :; done")
    reached(sandbox, worker, "running")
    wait_for(lambda: os.sched_getaffinity(pid) == every, "a guaranteed one that idles leaves all")
    sandbox.write("work", "now\n")
    wait_for(lambda: os.sched_getaffinity(pid) < every, "one that works does not")
    sandbox.sublet("pause", str(worker), check=True)
    wait_for(lambda: os.sched_getaffinity(pid) == every, "a pause leaves all")
    sandbox.sublet("resume", str(worker), check=True)
    wait_for(lambda: os.sched_getaffinity(pid) < every, "it works again")
    sandbox.sublet("cancel", str(worker), check=True)
    wait_for(lambda: os.sched_getaffinity(pid) == every, "its end leaves all")
    go(sandbox)
    assert ended(sandbox, polite)[0]["exit"] == 0


def test_an_opportunistic_job_makes_room_and_comes_back(
    new_either_sandbox: Callable[[int, int], Sandbox],
) -> None:
    sandbox = new_either_sandbox(1024, 2048)
    polite = shell(
        sandbox, f"echo x >> ran; {HOLD.format('go')}", "--opportunistic", memory="600MiB"
    )
    wait_for((sandbox.work / "ran").exists, "it has begun")
    urgent = shell(sandbox, HOLD.format("done"), memory="600MiB")
    reached(sandbox, urgent, "running")
    waiting = row(sandbox, polite)
    assert (waiting["state"], waiting["attempt"]) == ("waiting", 2)
    go(sandbox, "done")
    assert ended(sandbox, urgent)[0]["exit"] == 0
    go(sandbox)
    (last,) = ended(sandbox, polite)
    assert (last["exit"], last["attempt"]) == (0, 2)
    assert (sandbox.work / "ran").read_text() == "x\nx\n"


# For programs.


@pytest.fixture
def api(queue: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """The Python API in this process, on the queue's home."""
    monkeypatch.setenv("SUBLET_HOME", str(queue.home))
    monkeypatch.chdir(queue.work)
    return queue


def test_a_job_from_python(api: Sandbox) -> None:
    first = sublet.submit(["sh", "-c", HOLD.format("go")], memory="64MiB")
    second = sublet.submit(["sh", "-c", "exit 5"], memory="64MiB", after=[first])
    assert second.status().reason == f"after #{first.id}"
    with pytest.raises(TimeoutError, match=f"job {first.id} has not finished"):
        first.wait(timeout=0.05)
    first.pause()
    first.resume()
    go(api)
    assert first.wait(timeout=PATIENCE).code == 0
    assert second.wait().code == 5
    second.retry()
    assert second.wait().attempt == 2
    with pytest.raises(BadRequest, match="already finished"):
        second.cancel()
    assert second == sublet.Job(second.id)


@pytest.mark.every_python
def test_jobs_from_an_event_loop(api: Sandbox) -> None:
    async def both() -> list[int | None]:
        jobs = sublet.submit_array(["sh", "-c", "exit {index}"], range(2), memory="64MiB")
        assert (await jobs[0].status_async()).index == 0
        return [row.code for row in await asyncio.gather(*(job.wait_async() for job in jobs))]

    assert asyncio.run(both()) == [0, 1]


@pytest.mark.parametrize(
    "words", [["ps"], ["ps", "--all"], ["wait", "1"], ["cancel", "2"], ["retry", "1"]]
)
def test_what_programs_read_is_json_with_numbers(
    new_sandbox: NewSandbox, words: list[str], tmp_path: Path
) -> None:
    sandbox = new_sandbox()
    first = shell(sandbox, "exit 0")
    second = shell(sandbox, HOLD.format("never"))
    ended(sandbox, first)
    answer = sandbox.sublet(words[0], "--json", *words[1:], check=True)
    reply: Any = json.loads(answer.stdout)
    assert reply["schema"] == 1
    listed = words[0] in ("ps", "wait")
    numbers = [one["id"] for one in reply["jobs"]] if listed else reply["ids"]
    assert numbers == {"ps": [first, second], "cancel": [second]}.get(words[0], [first])


def test_a_shell_offers_the_numbers_of_jobs(queue: Sandbox) -> None:
    number = shell(queue, HOLD.format("go"), "--name", "offered")
    offered = _complete(queue, f"sublet cancel {str(number)[:1]}")
    assert str(number) in offered
    assert str(number) in _complete(queue, "sublet submit --after ''")
    go(queue)
    ended(queue, number)
    nowhere = dict(queue.environ, SUBLET_HOME=str(queue.work / "none"))
    assert _complete(queue, "sublet cancel ''", nowhere) == []


@pytest.mark.parametrize("line", ["run tr", "submit tr", "run --python tr", "probe x.py tr"])
def test_a_shell_offers_the_names_of_files_where_a_program_is_named(
    queue: Sandbox, line: str
) -> None:
    """They are its own to offer: it is told that files are wanted."""
    assert _complete(queue, f"sublet {line}") == ["tr"]


def _complete(sandbox: Sandbox, line: str, environ: dict[str, str] | None = None) -> list[str]:
    """What bash would offer for the last word of this line."""
    words = line.split()
    asked = {
        "_SUBLET_COMPLETE": "bash_complete",
        "COMP_WORDS": line.replace("''", ""),
        "COMP_CWORD": str(len(words) - 1),
    }
    answer = subprocess.run(
        SUBLET,
        env={**(environ or sandbox.environ), **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in answer.stderr
    return [one.partition(",")[2] for one in answer.stdout.split()]


# Bad input.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cancel", "FINISHED"], "has already finished"),
        (["pause", "FINISHED"], "has already finished"),
        (["resume", "RUNNING"], "is not paused"),
        (["retry", "RUNNING"], "has not finished"),
        (["cancel", "FAILED", "FINISHED"], "has already finished"),
        (["cancel", "RUNNING", "999999"], "There is no job 999999"),
        (["cancel", "train.py"], "'train.py' is neither a job number"),
        (["cancel", ""], "names no job"),
        (["cancel"], "JOBS"),
        (["ps", "999999"], "There is no job 999999"),
        (["ps", "99999999999999999999"], "is neither a job number"),
        (["wait", "999999"], "There is no job 999999"),
        (["wait", "--timeout", "soon", "RUNNING"], "not a span of time"),
        (["logs", "999999"], "There is no job 999999"),
        (["submit", "--after", "999999", "true"], "There is no job 999999 to wait for"),
        (["submit", "--after", "NEXT", "true"], "to wait for"),
        (["submit", "--after", "", "true"], "names no job"),
        (["submit", "--after-ok", "FAILED", "true"], "would wait for ever"),
        (["submit", "--memory", "64GiB", "true"], "it has 4.0 GiB"),
        (["submit", "--memory", "100%", "true"], "will never fit on cpu"),
        (["submit", "--array", "9-1", "true"], "--array '9-1' ends before it starts"),
        (["submit", "--time", "0s", "true"], "A time limit must be more than 0"),
        (["submit", "--time", "soon", "true"], "--time"),
        (["submit", "--retries", "-1", "true"], "--retries"),
        (["submit", "--priority", "urgent", "true"], "urgent"),
        (["submit", "none.py"], "there is no such file"),
        (["submit"], "Nothing to run"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    queue: Sandbox, standing: dict[str, int], words: list[str], says: str
) -> None:
    before = _all(queue)
    answer = queue.sublet(*(str(standing.get(word, word)) for word in words))
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    assert _all(queue) == before


@pytest.fixture(scope="module")
def standing(queue_home: Sandbox) -> Iterator[dict[str, int]]:
    """A job in each of some states."""
    finished, failed = shell(queue_home, "exit 0"), shell(queue_home, "exit 3")
    running = shell(queue_home, HOLD.format("standing"))
    ended(queue_home, finished, failed)
    reached(queue_home, running, "running")
    yield {"FINISHED": finished, "FAILED": failed, "RUNNING": running, "NEXT": running + 1}
    go(queue_home, "standing")
    ended(queue_home, running)


def _all(sandbox: Sandbox) -> list[tuple[Any, ...]]:
    answer = sandbox.sublet("ps", "--all", "--json", check=True)
    return [
        (one["id"], one["state"], one["attempt"], one["exit"])
        for one in json.loads(answer.stdout)["jobs"]
    ]


@pytest.mark.parametrize("words", [["ps"], ["status", "--json"], ["wait", "FINISHED"]])
def test_a_pipe_that_nobody_reads_any_more_ends_a_command_quietly(
    queue: Sandbox, standing: dict[str, int], words: list[str]
) -> None:
    """As `| head` does, with the code that other tools end with."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        named = [str(standing.get(word, word)) for word in words]
        answer = queue.sublet(*named, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (141, "")


def test_a_job_with_an_odd_name_does_not_break_the_table(queue: Sandbox) -> None:
    number = shell(queue, "exit 0", "--name", "a\nb\x1b[31m" + "long" * 20)
    ended(queue, number)
    words = ("ps", str(number), str(number - 1))
    table = queue.sublet(*words, env=queue.environ | {"COLUMNS": "80"}).stdout
    assert "\x1b" not in table
    assert [line.split()[0] for line in table.splitlines()[1:3]] == [f"#{number}", f"#{number - 1}"]
    assert max(map(len, table.splitlines())) <= 80
