"""`sublet top`: devices, jobs and models, live."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from sublet.errors import BadRequest, SubletError

if TYPE_CHECKING:
    from sublet.top.memory_history import MemoryHistory


@click.command("top")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
def command(ascii_only: bool) -> int:
    """Watch devices, jobs and served models, and act on them. `?` shows the keys."""
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise BadRequest(
            "`sublet top` needs a terminal.",
            "Use `sublet status`, `sublet status --json`, or `watch sublet status`.",
        )
    if os.environ.get("TERM", "dumb") == "dumb":
        raise BadRequest(
            "`sublet top` cannot draw on this terminal: TERM is not set, or `dumb`.",
            "Set it, for example TERM=xterm, or use `sublet status`.",
        )
    from sublet.client.connection import connect_or_start
    from sublet.home import Home

    home = Home.find()
    connection = connect_or_start(home)
    from sublet.cli import is_utf8
    from sublet.top.app import TopApp

    app = TopApp(home, connection, _history(), ascii_only or not is_utf8(sys.stderr))
    app.run()
    return app.return_code or 0


def _history() -> "MemoryHistory":
    """What the broker has kept of the last hour; nothing of one that keeps none."""
    import time

    from sublet.client.connection import ask
    from sublet.top.memory_history import LONGEST, MemoryHistory
    from sublet.wire.messages import AskUsageHistory, UsageHistory

    history = MemoryHistory()
    with contextlib.suppress(SubletError):
        history.fill(ask(AskUsageHistory(since=time.time() - LONGEST), UsageHistory))
    return history
