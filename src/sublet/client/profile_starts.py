"""Profiles that begin with a job: in a thread of its client, or in a process of their own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from sublet.client.jobs import Job
from sublet.client.profile import ProfileRecorder, checked_directory
from sublet.domain.profile import Profile
from sublet.errors import SubletError
from sublet.home import Home

_ANSWERS = 30.0
"""Seconds that are waited for a profile whose job has ended."""


class BackgroundProfile(threading.Thread):
    """Profiles a job of this process in a thread; `on_end` is told what came of it."""

    def __init__(
        self,
        job: int,
        logdir: str | os.PathLike[str] | None,
        on_end: Callable[[Profile | SubletError], None],
    ) -> None:
        super().__init__(name="sublet-profile", daemon=True)
        self._recorder = ProfileRecorder(job, logdir)
        self._on_end = on_end

    def run(self) -> None:
        try:
            self._on_end(self._recorder.run())
        except SubletError as error:
            self._on_end(error)

    def finish(self) -> None:
        """Wait for the rest, when the job has ended."""
        self.join(_ANSWERS)


def start_detached(job: int, logdir: str | os.PathLike[str] | None) -> Path:
    """Profile a job that may wait for long, in a process of its own that ends with it. Returns the
    directory of the profile, in which that process keeps a log, too."""
    if logdir is None:
        logdir = Home.find().logs / f"{Job(job).status().attempt_id}.profile"
    directory = checked_directory(logdir)
    words = ["profile", str(job), "--logdir", str(directory), "--wait"]
    with (directory / f"profile-{job}.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-S", "-E", "-c", _DETACH, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            env={**os.environ, "SUBLET_HOME": Home.find().name},
        )
    return directory


_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
os.execv(sys.executable, [sys.executable, "-m", "sublet", *sys.argv[1:]])
"""
