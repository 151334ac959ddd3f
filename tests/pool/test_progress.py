"""The bar of `map`, as a person sees it."""

import html
import re
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from sublet.pool.progress import Bar
from support.sandbox import Sandbox, wait_for
from support.screen import Screen
from support.terminal import Terminal

PROGRAM = """
import os, sys, time
import sublet
from sublet import multiprocessing

def work(name):
    for line in range(30):
        os.write(1, f"{name} says {line}\\n".encode())
    open(f"{name} is here", "w")
    while not os.path.exists(f"{name} go"):
        time.sleep(0.01)
    if name == "bad":
        raise ValueError("no good")
    return name

def lead():
    with sublet.Pool(2, memory="64MiB") as pool:
        yield from pool.map(work, sys.argv[2:])

if sys.argv[1] == "sublet":
    print("result:", *lead(), flush=True)
else:
    with multiprocessing.Pool(2, memory="64MiB") as pool:
        print("result:", *pool.map(work, sys.argv[2:], chunksize=1), flush=True)
"""


def start(sandbox: Sandbox, *words: str) -> Terminal:
    sandbox.environ["TERM"] = "xterm-256color"
    return Terminal(
        sandbox, str(sandbox.write("bars.py", PROGRAM)), *words, command=[sys.executable]
    )


def seen(terminal: Terminal) -> Screen:
    return Screen().feed(terminal.screen)


def expect_bar(terminal: Terminal, pattern: str) -> None:
    """Wait until the last line is like this."""
    wait_for(
        lambda: re.fullmatch(pattern, Screen().feed(terminal.look()).lines[-1]),
        f"the last line is like {pattern}",
    )


def test_a_bar_counts_calls_and_keeps_out_of_the_way_of_their_output(sandbox: Sandbox) -> None:
    """It fits a line of 80 columns, and stays to be read when all is done."""
    terminal = start(sandbox, "sublet", "a", "b", "c")
    terminal.expect("0/3")
    sandbox.write("a go", "")
    terminal.expect("c says 29")
    expect_bar(terminal, r"work [━╸╺]+ 1/3 \d:\d\d:\d\d [-\d]:[-\d]+:[-\d]+")
    sandbox.write("b go", "")
    sandbox.write("c go", "")
    assert terminal.wait() == 0
    screen = seen(terminal)
    said = [f"{name} says {n}" for name in "abc" for n in range(30)]
    assert sorted(line for line in screen.text if " says " in line) == sorted(said)
    assert screen.text[-1] == "result: a b c"
    assert screen.text[-2].startswith("work ")
    assert "3/3" in screen.text[-2]
    assert screen.scrolls_whole


def test_calls_that_fail_are_counted_and_an_error_leaves_no_bar(sandbox: Sandbox) -> None:
    terminal = start(sandbox, "multiprocessing", "good", "bad")
    terminal.expect("0/2")
    sandbox.write("bad go", "")
    expect_bar(terminal, r"work [━╸╺]+ 1/2 .* 1 failed")
    sandbox.write("good go", "")
    assert terminal.wait() == 1
    screen = seen(terminal)
    assert screen.text[-1] == "ValueError: no good"
    assert not [line for line in screen.text if "━" in line or "1 failed" in line]
    assert screen.scrolls_whole


def test_ctrl_c_leaves_no_bar(sandbox: Sandbox) -> None:
    terminal = start(sandbox, "sublet", "a", "b")
    terminal.expect("0/2")
    terminal.type("\x03")
    assert terminal.wait() != 0
    screen = seen(terminal)
    assert screen.text[-1] == "KeyboardInterrupt"
    assert not [line for line in screen.text if "━" in line]
    assert screen.scrolls_whole


def test_a_bar_says_why_calls_wait(sandbox: Sandbox) -> None:
    """Cut where the line ends."""
    sandbox.write(
        "large.py",
        PROGRAM.replace('memory="64MiB"', 'memory="60%"').replace("range(30)", "range(1)"),
    )
    sandbox.environ["TERM"] = "xterm-256color"
    command = [sys.executable, str(sandbox.work / "large.py")]
    terminal = Terminal(sandbox, "sublet", "a", "b", command=command)
    expect_bar(terminal, r"work ━+ 0/2 \d:\d\d:\d\d -:--:-- +needs .*…")
    sandbox.write("a go", "")
    sandbox.write("b go", "")
    assert terminal.wait() == 0


def test_nothing_is_done_where_nobody_looks() -> None:
    """No thread, no callback: stderr is no terminal in this test."""
    future: Future[int] = Future()
    with Bar("work", lambda: "") as bar:
        assert bar.follow(future) is future
        with bar:
            assert "sublet-bar" not in [thread.name for thread in threading.enumerate()]
    assert future.__dict__["_done_callbacks"] == []


def test_a_notebook_shows_the_bar_below_its_cell(sandbox: Sandbox, tmp_path: Path) -> None:
    """In one place that is drawn again, without any other package."""
    manager = KernelManager(connection_file=str(tmp_path / "kernel.json"))
    manager.start_kernel(
        cwd=str(sandbox.work), env={**sandbox.environ, "IPYTHONDIR": str(tmp_path)}
    )
    client = manager.client()
    client.start_channels()
    shown: list[tuple[str, str, str]] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            text = re.sub(r"<[^>]*>", "", html.unescape(content["data"]["text/html"]))
            place = content["transient"]["display_id"]
            shown.append((message["msg_type"], place, text))
            sandbox.write("a go", "")
            if "1/2" in text:
                sandbox.write("b go", "")

    cell = (
        PROGRAM.partition("if sys.argv")[0]
        + 'with sublet.Pool(2, memory="64MiB") as pool:\n    print(list(pool.map(work, "ab")))'
    )
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(cell, timeout=90, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert reply["content"]["status"] == "ok", reply
    kinds, places, texts = zip(*shown, strict=True)
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert len(set(places)) == 1
    assert "0/2" in texts[0]
    assert "2/2" in texts[-1]
    assert "work" in texts[-1]
