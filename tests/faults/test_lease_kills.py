"""Kill the broker while processes take leases and give them back: each has what it was told."""

import os
import random
import signal
from collections.abc import Callable

import pytest

from support.resident import residents
from support.sandbox import Sandbox, wait_for

TURNS = """
import sublet
for turn in range(20):
    mine = sublet.lease('64MiB', name=f'turn {turn}')
    assert sublet.lease('64MiB') is mine
    mine.release()
mine = sublet.lease('64MiB', name='the last')
print(mine.job)
"""


def _kill_broker(sandbox: Sandbox) -> None:
    pid = int(sandbox.status()["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in sandbox.processes(), "it is dead")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_kills_leaves_no_lease_behind_and_loses_none(
    new_sandbox: Callable[..., Sandbox], seed: int
) -> None:
    dice = random.Random(seed)
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    with residents(sandbox) as make:
        four = [make() for _ in range(4)]
        for one in four:
            one.begin(TURNS)
        for _ in range(10):
            # Any moment will do: the wait is the dice's, and nothing depends on its length.
            wait_for(lambda: dice.random() < 0.3, "the dice say so")
            _kill_broker(sandbox)
        answers = [one.answer() for one in four]
        assert [answer["error"] for answer in answers] == [None] * 4
        expected = {(int(a["said"]), one.pid) for a, one in zip(answers, four, strict=True)}
        leases = sandbox.status()["leases"]
        assert {(row["job"], row["pid"]) for row in leases} == expected
        assert {row["state"] for row in leases} == {"running"}
        wait_for(lambda: not sandbox.status()["waiting"], "nobody waits")
        for one in four:
            one.kill()
        wait_for(lambda: not sandbox.status()["leases"], "nothing is held")
