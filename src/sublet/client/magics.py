"""`%sublet`, for notebooks: `%load_ext sublet` makes it known."""

import argparse
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

from sublet.client.api import status
from sublet.client.lease import Lease, lease
from sublet.errors import BadRequest

if TYPE_CHECKING:
    from sublet.wire.messages import Snapshot


def magic(line: str) -> "Snapshot | Lease | None":
    """`%sublet status` shows devices, leases and who waits. `%sublet lease 2GiB` takes a lease for
    this kernel. Other words are those of the `sublet` command, whose output is shown."""
    try:
        verb, *words = shlex.split(line) or ["status"]
    except ValueError as error:
        raise BadRequest(f"%sublet {line}: {error}.", "Close the quotation.") from None
    if verb == "lease":
        return _lease(words)
    if verb == "status" and not words:
        return status()
    _run([verb, *words])
    return None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadRequest(
            f"%sublet lease: {message}.", "Such as: %sublet lease 2GiB --device gpu0 --timeout 60"
        )


def _lease(words: list[str]) -> Lease:
    parser = _Parser(prog="%sublet lease", add_help=False)
    parser.add_argument("memory", nargs="?", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--name")
    parser.add_argument("--timeout", type=float)
    return lease(**vars(parser.parse_args(words)))


def _run(words: list[str]) -> None:
    """Show what the command writes, as it comes. Interrupting the kernel interrupts it."""
    with subprocess.Popen(
        [sys.executable, "-m", "sublet", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as command:
        assert command.stdout is not None
        for text in command.stdout:
            print(text, end="", flush=True)
