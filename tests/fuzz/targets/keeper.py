"""What a keeper hears: packets of JSON, at the socket that a later broker finds it by.

A real keeper and its program. Both go on, whatever comes, unless it is a wish that can be met.

    how many descriptors (1 byte), the packet
"""

import json
import os
import socket

from fuzz import scratch
from fuzz.driver import Random, Target
from sublet.keeper import process_tree
from support.launcher_harness import LaunchedAttempt, LauncherHarness

_SEEDS: tuple[dict[str, object], ...] = (
    {"pause": True},
    {"pause": False},
    {"duty": 0.5},
    {"processors": [0]},
    {"processors": []},
    {"pause": False, "duty": 1.0, "processors": [0, 1]},
    {"broker": "/nowhere", "log": "/dev/null"},
)
_FIELDS = ("stop", "why", "pause", "duty", "processors", "signal", "broker", "log", "go", "event")
_ODD: tuple[object, ...] = (
    None,
    True,
    "",
    "x",
    [],
    {},
    [None],
    ["x"],
    [1 << 70],
    -1,
    1e400,
    float("nan"),
    "\ud800",
)


def target() -> Target:
    launcher = LauncherHarness(scratch.directory())
    code = "import time\nprint('up', flush=True)\ntime.sleep(100000)"
    launched = launcher.start("1.1", code, broker={"command": ["/bin/true"], "environ": {}})
    launched.says("up")
    before = len(os.listdir(f"/proc/{launched.keeper}/fd"))

    def feed(data: bytes) -> None:
        if _is_a_wish(data[1:]):
            return
        null = os.open(os.devnull, os.O_RDWR)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(20.0)
            sock.connect(f"{launched.directory}/keeper.sock")
            try:
                number = data[0] % 6 if data else 0
                socket.send_fds(sock, [data[1 : 1 << 16] or b"{}"], [null] * number)
                # It says who it is when it is connected to, and hears in the order of coming.
                assert sock.recv(1 << 16), "the keeper has hung up"
            finally:
                os.close(null)
        _lives(launched)

    def check() -> None:
        _lives(launched)
        assert len(os.listdir(f"/proc/{launched.keeper}/fd")) < before + 20, "descriptors stay open"

    seeds = [b"\0" + json.dumps(one).encode() for one in _SEEDS]
    return Target(feed, seeds, make, launcher.close, check)


def _lives(launched: LaunchedAttempt) -> None:
    assert process_tree.start_time(launched.keeper) is not None, "the keeper has ended"
    assert process_tree.start_time(launched.worker) is not None, "the program has ended"


def _is_a_wish(data: bytes) -> bool:
    """Whether it is told to end its program, or to signal it."""
    try:
        packet = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(packet, dict):
        return False
    return any(isinstance(packet.get(name), int | float) for name in ("stop", "signal"))


def make(chance: Random) -> bytes:
    fields = {name: chance.choice(_ODD) for name in chance.sample(_FIELDS, chance.randrange(1, 5))}
    return bytes([chance.randrange(6)]) + json.dumps(fields).encode()
