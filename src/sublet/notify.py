"""Tells people that a job has ended: on their desktop, by a web hook, or by a command of theirs.

The standard library alone. The broker waits for no network: it runs `main` in a process for each,
which reads from standard input what to tell whom.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from sublet.errors import BadRequest, WorldError

DESKTOP = "desktop"
_HOOKS = ("http://", "https://")
_PATIENCE = 10.0
"""Seconds in which a web hook has to answer."""
_PAUSES = (0.0, 1.0, 4.0)
"""Seconds before each attempt to reach a web hook."""
_COMMAND_PATIENCE = 60.0
_LONGEST = 2000

Event = dict[str, str | int | float | None]
"""What has happened. `text` says it in a sentence, which is what chat services show."""


def check(target: str) -> str:
    """The target, if it can be one. Raises BadRequest if not."""
    if not target.strip() or len(target) > _LONGEST or "\0" in target:
        raise BadRequest(
            f"--notify {target[:40]!r} is nobody.",
            "Write desktop, the address of a web hook, or a command in quotes.",
        )
    if target == DESKTOP and shutil.which("notify-send") is None:
        raise BadRequest(
            "--notify desktop needs notify-send, which is not here.",
            "Install it (libnotify), or name a web hook or a command.",
        )
    if target.lower().startswith(_HOOKS) and not urllib.parse.urlsplit(target).hostname:
        raise BadRequest(f"--notify {target!r} has no host.", "Such as https://example.org/hook.")
    return target


def send(target: str, event: Event) -> None:
    """Tell this target. Raises WorldError if it could not be told."""
    try:
        if target == DESKTOP:
            _show(event)
        elif target.lower().startswith(_HOOKS):
            _post(target, event)
        else:
            _call(target, event)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # A hook's address may be a secret, and a command's words, too.
        raise WorldError(f"Nobody was notified: {_words(error)}.") from None


def _show(event: Event) -> None:
    urgency = "normal" if event["state"] == "done" else "critical"
    words = ["notify-send", "--app-name=sublet", f"--urgency={urgency}", "--", "Sublet"]
    subprocess.run(
        [*words, str(event["text"])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=_PATIENCE,
    )


def _post(address: str, event: Event) -> None:
    """Send the event as JSON. A hook that fails of itself (5xx) or is not there is tried again."""
    headers = {"Content-Type": "application/json", "User-Agent": "sublet"}
    request = urllib.request.Request(address, json.dumps(event).encode(), headers)
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            urllib.request.urlopen(request, timeout=_PATIENCE).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500 or pause == _PAUSES[-1]:
                raise
        except OSError:
            if pause == _PAUSES[-1]:
                raise


def _call(command: str, event: Event) -> None:
    # Not SUBLET_LEASE or SUBLET_DEVICE: these mean something to a `sublet` that the command runs.
    values = {f"SUBLET_JOB_{name.upper()}": str(value) for name, value in event.items()}
    subprocess.run(
        ["/bin/sh", "-c", command],
        env={**os.environ, **{name: value.replace("\0", "") for name, value in values.items()}},
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=_COMMAND_PATIENCE,
    )


def _words(error: Exception) -> str:
    match error:
        case urllib.error.HTTPError():
            return f"the web hook answered {error.code}"
        case urllib.error.URLError():
            return f"the web hook cannot be reached ({error.reason})"
        case subprocess.CalledProcessError():
            return f"the command ended with {error.returncode}"
        case subprocess.TimeoutExpired():
            return f"the command took more than {error.timeout:.0f} s"
    return str(error)


def main() -> int:
    """Tell whom standard input names; what goes wrong is for the broker's log."""
    order = json.load(sys.stdin)
    try:
        with contextlib.suppress(OSError):  # The job's directory may be gone.
            os.chdir(order["directory"])
        send(order["target"], order["event"])
    except WorldError as error:
        print(f"#{order['event']['number']}: {error.message}", file=sys.stderr)
        return 1
    return 0
