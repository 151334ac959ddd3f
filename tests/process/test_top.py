"""`sublet top` in a real terminal, with a real broker and real jobs."""

import os
import signal
import subprocess
from collections.abc import Callable

from support.emulator import Emulator
from support.queue import HOLD, reached, row, shell
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]


def test_jobs_come_are_followed_and_cancelled_and_a_broker_goes_and_returns(
    new_sandbox: NewSandbox,
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    with Emulator(sandbox, "top", rows=24, columns=80) as top:
        top.expect("nothing runs; try `sublet run train.py`", "device", "1.0 GiB", "q quit")
        first = shell(sandbox, f"echo the first line; {HOLD.format('go')}", memory="600MiB")
        second = shell(sandbox, "true", "--name", "second", memory="600MiB")
        top.expect(f"#{first}  sh", f"#{second}  second", "running", "waiting  needs")

        top.type("l")
        top.expect(f"output of #{first} sh", "the first line")
        top.type("l")
        top.type("/second\r")
        top.expect("jobs with “second”", f"#{second}  second", gone=f"#{first}  sh")
        top.type("c")
        top.expect(f"Cancel #{second} second?")
        top.type("y")
        assert reached(sandbox, second, "finished")["cause"] == "cancelled"
        top.expect("second  cancelled")

        sandbox.sublet("down", check=True)
        top.expect("The broker has ended.")
        assert row(sandbox, first)["state"] == "running"  # Which starts a broker.
        top.expect("sublet top  1 running")
        top.type("q")
        assert top.wait() == 0


def test_a_wide_terminal_that_knows_ascii_alone(new_sandbox: NewSandbox) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB")
    shell(sandbox, HOLD.format("go"), "--name", "modèle", memory="300MiB")
    with Emulator(sandbox, "top", "--ascii", rows=50, columns=160) as top:
        top.expect("running", "-10 min", "++")
        top.until(
            lambda lines: any("job  name" in line and "cpu  # used" in line for line in lines),
            "the list and the plot stand side by side",
        )
        assert all(line.isascii() for line in top.lines)
        top.type("?")
        top.expect("# used", ". free")
        assert all(line.isascii() for line in top.lines)
        os.kill(top.pid, signal.SIGTERM)
        assert top.wait() == 0


def test_it_ends_though_its_terminal_takes_nothing_any_more(new_sandbox: NewSandbox) -> None:
    with Emulator(new_sandbox(SUBLET_CPU_MEMORY="1GiB"), "top", rows=60, columns=200) as top:
        top.expect("nothing runs", "q quit")
        for _ in range(200):  # Each draws all of the screen, and nobody reads it.
            top.type("?")
        wait_for(lambda: top.unread() > 1000, "it has drawn")
        os.kill(top.pid, signal.SIGTERM)
        wait_for(top.has_ended, "it ends")


def test_without_a_terminal_it_says_what_to_use_instead(new_sandbox: NewSandbox) -> None:
    answer = new_sandbox().sublet("top", stdin=subprocess.DEVNULL)
    assert answer.returncode == 2
    assert "needs a terminal" in answer.stderr
    assert "sublet status --json" in answer.stderr
