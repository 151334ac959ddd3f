"""A real browser without a window, driven through its DevTools protocol over a pipe.

Debian's `chromium` or any other that is installed: `make browser` installs it where it can.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--remote-debugging-pipe",
)
# The browser reads from descriptor 3 and writes to 4. Neither may be lost to the other's place.
_START = """
import os, sys
reading, writing = (os.dup2(int(text), 100 + at) for at, text in enumerate(sys.argv[1:3]))
os.dup2(reading, 3), os.dup2(writing, 4)
os.closerange(100, 102)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """The path of a browser; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of a browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._unread = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.faults: list[str] = []
        """What the page has complained of: exceptions, refused scripts, failed loads."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        deadline = time.monotonic() + PATIENCE
        while (answer := self._next(deadline)).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, address: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression is true in the page; its value."""
        deadline = time.monotonic() + PATIENCE
        # An element has no value that could be sent here.
        plain = f"(value => value instanceof Node ? true : value)({script})"
        while not (value := self.run(plain)):
            shown = self.run("document.body?.innerText.slice(0, 2000)")
            assert time.monotonic() < deadline, f"not true: {script}\n{shown}\n{self.faults}"
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """Press and let go of a key that writes a letter, or of a named one."""
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """Have a window of this size, in one of the two themes."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def screenshot(self, path: Path) -> None:
        """Save what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                raise AssertionError("the browser does not answer")
            data = os.read(self._reading, 1 << 20)
            if not data:
                raise AssertionError("the browser has ended")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.faults.append(str(parameters["entry"]))


@contextlib.contextmanager
def browser(path: str, profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    options = [*_OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(to_browser), str(from_browser), path, *options],
        pass_fds=[to_browser, from_browser],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(to_us, from_us)
    finally:
        os.close(from_us)  # It ends when nobody can ask for anything any more.
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_us)
