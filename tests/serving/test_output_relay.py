"""What an engine writes reaches the server's stderr as text, and not without end."""

import os

from sublet.serving.output_relay import OutputRelay
from support.sandbox import wait_for


def test_each_line_is_made_plain_and_the_last_one_needs_no_end() -> None:
    said: list[str] = []
    relay = OutputRelay(said.append)
    os.write(
        relay.writing, b"W0000 \x1b]0;owned\x07\r\n\t[[node]]\n\xff\xc2\x9bcaf\xc3\xa9\nlast words"
    )
    relay.close()
    wait_for(lambda: len(said) == 4, "all of it was said")
    assert said == [
        "W0000 \ufffd]0;owned\ufffd\ufffd",
        "        [[node]]",
        "\ufffd\ufffdcaf\xe9",
        "last words",
    ]


def test_a_flood_is_cut_and_says_so() -> None:
    said: list[str] = []
    relay = OutputRelay(said.append)
    with open(os.dup(relay.writing), "wb") as out:
        for number in range(50_000):
            out.write(b"line %d\n" % number)
    os.write(relay.writing, b"x" * 10_000)
    relay.close()
    wait_for(lambda: not relay._thread.is_alive(), "all of it was read")
    assert 1000 <= len(said) < 20_000
    assert max(map(len, said)) <= 4000
    relay._allowance = 2.0
    relay._hear(b"another")
    assert said[-2].endswith("lines left out …")
    assert said[-1] == "another"
