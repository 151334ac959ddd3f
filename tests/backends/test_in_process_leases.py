"""Processes that hold a lease themselves: who has it is decided once, and its end is seen."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sublet.backends.backend import Ending
from sublet.backends.local.in_process_leases import InProcessLeases
from sublet.domain.job import Process
from sublet.formats import attempt_files
from sublet.keeper import process_tree
from sublet.reactor import Reactor

RUN = "7.1"


class Harness:
    """Lodgers, and what they report."""

    def __init__(self, runs: Path) -> None:
        self.reactor = Reactor()
        self.directory = str(runs / RUN)
        self.heard: list[str] = []
        self.ending: Ending | None = None
        self.pids: list[int] = []
        self.in_process_leases = InProcessLeases(self.reactor, runs, self)

    def started(self, run: str, keeper: Process, worker: Process, how: str) -> None:
        assert keeper == worker
        self.heard.append("started")

    def sampled(self, run: str, now: int, peak: int, pids: list[int], busy: float) -> None:
        assert now <= peak
        assert busy >= 0
        self.pids = pids

    def ended(self, run: str, ending: Ending) -> None:
        self.heard.append("ended")
        self.ending = ending

    def never_ran(self, run: str, why: str) -> None:
        self.heard.append("never ran")

    def nurseries_changed(self) -> None:
        """Not of interest."""

    def hear(self, count: int) -> list[str]:
        """Go on until there have been so many reports."""
        while len(self.heard) < count:
            self.reactor.run_once()
        return self.heard

    def takes(self) -> bool:
        """As the lodger does it."""
        return attempt_files.claim(self.directory, {"pid": 1})


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    made = Harness(tmp_path)
    yield made
    made.in_process_leases.close()
    made.reactor.close()


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that lives until it is killed."""
    made = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    yield made
    made.kill()
    made.wait()


def identity(process: "subprocess.Popen[bytes]") -> Process:
    return Process(process.pid, process_tree.start_time(process.pid) or 0)


def test_a_lease_that_is_taken_holds_until_the_process_ends(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    harness.in_process_leases.offer(RUN, b"{}", identity(process))
    assert harness.takes()
    harness.in_process_leases.settle(RUN)
    assert harness.heard == ["started"]
    assert harness.pids == [process.pid]
    harness.in_process_leases.settle(RUN)
    assert harness.heard == ["started"]
    process.kill()
    assert harness.hear(2) == ["started", "ended"]
    assert harness.ending is not None
    assert (harness.ending.status, harness.ending.note) == (None, "it ended without saying why")
    assert harness.ending.system_peak


def test_an_offer_that_is_given_up_cannot_be_taken_any_more(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    harness.in_process_leases.offer(RUN, b"{}", identity(process))
    harness.in_process_leases.settle(RUN)
    assert harness.heard == ["never ran"]
    assert not harness.takes()


def test_a_process_that_ends_before_it_has_taken_its_lease_never_had_it(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    """Also one that has ended before it was offered."""
    known = identity(process)
    harness.in_process_leases.offer(RUN, b"{}", known)
    process.kill()
    assert harness.hear(1) == ["never ran"]
    process.wait()
    harness.in_process_leases.offer("8.1", b"{}", known)
    assert harness.hear(2) == ["never ran", "never ran"]


def test_a_later_broker_finds_what_was_taken_and_gives_up_what_was_not(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    harness.in_process_leases.offer(RUN, b"{}", identity(process))
    later = Harness(Path(harness.directory).parent)
    harness.takes()
    later.in_process_leases.adopt(RUN, identity(process), taken=False, rebooted=False)
    assert later.heard == ["started"]
    later.in_process_leases.offer("8.1", b"{}", identity(process))
    last = Harness(Path(harness.directory).parent)
    last.in_process_leases.adopt("8.1", identity(process), taken=False, rebooted=False)
    last.in_process_leases.adopt("9.1", identity(process), taken=False, rebooted=False)
    assert last.heard == ["never ran", "never ran"]
    later.in_process_leases.settle("8.1")
    assert later.heard == ["started", "never ran"]


def test_a_lease_known_to_be_held_is_not_lost_with_its_directory(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    harness.in_process_leases.adopt(RUN, identity(process), taken=True, rebooted=False)
    harness.in_process_leases.settle(RUN)
    assert harness.heard == []
    assert harness.pids == [process.pid]
    process.kill()
    assert harness.hear(1) == ["ended"]


def test_another_process_with_the_same_number_is_not_the_lodger(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    older = Process(process.pid, identity(process).start - 1)
    harness.in_process_leases.adopt(RUN, older, taken=True, rebooted=False)
    assert harness.heard == ["ended"]


def test_after_a_restart_of_the_machine_nothing_is_held(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    """Though a process of the same number may have started at the same tick."""
    harness.in_process_leases.adopt(RUN, identity(process), taken=True, rebooted=True)
    assert harness.heard == ["ended"]
    assert harness.ending == Ending(None, note="the machine was restarted")


def test_what_is_given_back_has_ended_though_the_process_goes_on(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    harness.in_process_leases.offer(RUN, b"{}", identity(process))
    harness.takes()
    harness.in_process_leases.settle(RUN)
    attempt_files.write(harness.directory, "exit.json", {"status": 0, "note": "given back"})
    harness.in_process_leases.settle(RUN)
    assert harness.heard == ["started", "ended"]
    assert harness.ending is not None
    assert (harness.ending.status, harness.ending.note) == (0, "given back")


def test_a_full_table_of_descriptors_is_no_exit(
    harness: Harness, process: "subprocess.Popen[bytes]"
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    known = identity(process)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        harness.in_process_leases.adopt(RUN, known, taken=True, rebooted=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert harness.heard == []
    process.kill()
    assert harness.hear(1) == ["ended"]
