"""Decoders are made by one thread at a time: msgspec does not bear two."""

import subprocess
import sys
import threading
import time

import pytest

from sublet.wire.decoders import made_once

_TWO_THREADS = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
import msgspec
from sublet.wire.decoders import made_once

def slow():
    reached.set()
    time.sleep(0.3)
    return int

reached = threading.Event()
class Inner(msgspec.Struct):
    number: "slow()"
class Outer(msgspec.Struct):
    inner: Inner
    number: int

@made_once
def decoder():
    return msgspec.msgpack.Decoder(Outer)

record = msgspec.msgpack.encode({"inner": {"number": 1}, "number": 2})
def decode():
    return decoder().decode(record)

with ThreadPoolExecutor(2) as threads:
    first = threads.submit(decode)
    reached.wait()
    second = threads.submit(decode)
    print(first.result() == second.result() == Outer(Inner(1), 2))
"""


def test_a_thread_that_decodes_while_another_makes_the_decoder_does_not_end_the_process() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _TWO_THREADS], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


def test_two_decoders_are_not_made_at_the_same_time() -> None:
    making = []
    beside = []

    def make() -> object:
        making.append(1)
        beside.append(len(making))
        time.sleep(0.05)
        making.pop()
        return object()

    makers = [made_once(make), made_once(make)]
    found: list[object] = []
    threads = [threading.Thread(target=lambda one=one: found.append(one())) for one in makers * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert beside == [1, 1], "one for each, one after the other"
    assert len(found) == 6
    assert len(set(map(id, found))) == 2


def test_a_decoder_that_cannot_be_made_is_tried_again() -> None:
    tries: list[int] = []

    @made_once
    def make() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return 7

    with pytest.raises(ValueError, match="not yet"):
        make()
    assert make() == make() == 7
    assert len(tries) == 2
