"""Who a cluster waits for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.broker import gang_watch
from sublet.broker.gang_watch import ClusterWatch, Task, culprits
from sublet.domain.job import Process
from sublet.formats import stack_dump
from sublet.keeper import held_port, process_tree
from support.sandbox import wait_for

WAITS = """\
Current thread 0x7f (most recent call first):
  File "/venv/tensorflow/python/eager/execute.py", line 53 in quick_execute
"""
HANGS = """\
step 3
Current thread 0x7f (most recent call first):
  File "/home/someone/train.py", line 34 in load
"""
PLACE = 'File "/home/someone/train.py", line 34 in load'


def process(pid: int) -> Process:
    start = process_tree.start_time(pid)
    assert start is not None
    return Process(pid, start)


@pytest.fixture
def sleepers() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Two processes that do nothing."""
    made = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    # What starting them takes of a processor is no work of theirs.
    time.sleep(0.1)
    yield made
    for one in made:
        one.kill()
        one.wait()


def idle(tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]) -> list[Task]:
    """The tasks of a cluster with no ports."""
    return [
        Task(at, f"{at}.1", process(one.pid), None, tmp_path / f"{at}.1.log")
        for at, one in enumerate(sleepers, 3)
    ]


def test_the_task_that_does_not_wait_inside_tensorflow_is_the_one_that_hangs() -> None:
    waits, hangs = WAITS.splitlines(), HANGS.splitlines()
    assert culprits({3: waits, 4: hangs}) == {4: PLACE}
    assert culprits({3: waits, 4: [*waits, *hangs]}) == {4: PLACE}, "the last stacks count"
    assert culprits({3: waits, 4: waits}) == {}
    assert culprits({3: hangs, 4: hangs}) == {}
    assert culprits({3: [], 4: []}) == {}


def test_who_has_not_opened_its_port_is_named_until_it_has(tmp_path: Path) -> None:
    held, missing = held_port.hold(), held_port.hold()
    with held, missing:
        tasks = [
            Task(at, f"{at}.1", process(os.getpid()), held_port.number(one), tmp_path / "log")
            for at, one in enumerate((held, missing), 3)
        ]
        watch = ClusterWatch(2, patience=10.0)
        assert watch.look(tasks, 0.0) == watch.look(tasks, 9.0) == {}
        found = watch.look(tasks, 10.0)
        assert set(found) == {3, 4}
        assert all("like all tasks: each runs alone" in text for text in found.values())
        held.listen()
        ((job, told),) = watch.look(tasks, 11.0).items()
        assert job == 4
        assert told.startswith(f"has not opened its port 127.0.0.1:{tasks[1].port} for 10 s")
        assert watch.opened == {3}
        missing.listen()
        assert watch.look(tasks, 12.0) == {}
        again = [one._replace(attempt_id=f"{one.job}.2") for one in tasks]
        assert watch.look(again[:1], 30.0) == {}
        assert watch.opened == {3}, "in another attempt, tasks begin anew"


def test_a_cluster_that_stands_still_is_named_with_who_hangs_until_it_goes_on(
    tmp_path: Path,
    sleepers: list["subprocess.Popen[bytes]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stacks that it was asked for are no sign of life, and it is asked once."""
    tasks = idle(tmp_path, sleepers)
    stacks = {tasks[0].worker: (tasks[0].log, WAITS), tasks[1].worker: (tasks[1].log, HANGS)}
    asked = []

    def dump(worker: Process) -> bool:
        log, text = stacks[worker]
        with log.open("a") as file:
            file.write(text)
        asked.append(worker)
        return True

    monkeypatch.setattr(gang_watch, "ask_for_stacks", dump)
    watch = ClusterWatch(2, patience=10.0)
    assert watch.look(tasks, 0.0) == watch.look(tasks, 9.0) == {}
    still = watch.look(tasks, 10.0)
    assert set(still) == {3, 4}
    assert all(text.startswith("has used no processor") for text in still.values())
    assert watch.look(tasks, 11.0) == still
    found = watch.look(tasks, 14.0)
    assert found[4] == f"is at {PLACE}; the others wait in TensorFlow"
    assert watch.look(tasks, 20.0) == found
    tasks[1].log.write_text("step 4\n")
    assert watch.look(tasks, 21.0) == {}
    assert set(watch.look(tasks, 31.0)) == {3, 4}
    assert len(asked) == 2


def test_a_task_that_somebody_has_stopped_is_named_until_it_goes_on(
    tmp_path: Path, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    tasks = idle(tmp_path, sleepers)
    pid = sleepers[1].pid
    watch = ClusterWatch(2, patience=100.0)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: process_tree.is_stopped(pid), "a process that is stopped")
    assert watch.look(tasks, 0.0) == {}
    ((job, told),) = watch.look(tasks, 5.0).items()
    assert job == 4
    assert f"`kill -CONT {pid}`" in told
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not process_tree.is_stopped(pid), "a process that goes on")
    assert watch.look(tasks, 6.0) == {}


def test_no_process_is_asked_for_its_stacks_that_does_not_listen_for_it() -> None:
    """The signal would end it. Nor is one that has only the number of a task."""
    assert not gang_watch.ask_for_stacks(process(os.getpid()))
    listens = (
        "import signal, sys\n"
        f"signal.signal({stack_dump.SIGNAL}, lambda *_: sys.exit('asked'))\n"
        "print(flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listens], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        known = process(child.pid)
        assert not gang_watch.ask_for_stacks(Process(known.pid, known.start + 1))
        assert gang_watch.ask_for_stacks(known)
        assert child.communicate()[1].strip() == b"asked"


def test_a_log_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    """Its program can put anything there; the broker waits for nobody."""
    pipe, link = tmp_path / "3.1.log", tmp_path / "4.1.log"
    os.mkfifo(pipe)
    link.symlink_to("/proc/self/mem")
    assert gang_watch._last_lines(pipe) == gang_watch._last_lines(link) == []
    assert gang_watch._last_lines(tmp_path / "none") == []
