"""Has people told that their jobs have ended, by a process for each: hooks take their time."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import sublet
from sublet.broker import log
from sublet.broker.effects import NotifyUser
from sublet.broker.unit_of_work import UnitOfWork
from sublet.domain.job import Finished, Job
from sublet.home import Home
from sublet.policy.notification import notification

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from sublet import notify; "
    "sys.exit(notify.main())"
)
_PACKAGE = str(Path(sublet.__file__).parent.parent)


@dataclass(eq=False)
class Notifications:
    """Has them told once the end of their job is on disk; not if the broker is killed between."""

    _work: UnitOfWork
    _home: Home

    def note(self, job: Job) -> None:
        """Note that this job has finished, so that its user is told."""
        if job.spec.notify:
            self._work.after_commit(NotifyUser(job))

    def send(self, job: Job) -> None:
        """Tell whom the job names, with its own environment: it knows the way to a desktop."""
        assert isinstance(job.state, Finished)
        host = socket.gethostname()
        event = notification(job.id, job.spec.name, job.state.outcome, job.state.lease, host)
        around = job.spec.surroundings
        order = {
            "target": job.spec.notify,
            "event": event,
            "directory": os.fsdecode(around.cwd),  # Not entered here: it may be on a network.
        }
        try:
            self._start(json.dumps(order).encode(), around.environ)
        except OSError as error:
            log.note(f"#{job.id}: nobody was notified: {error}")

    def _start(self, order: bytes, environ: dict[bytes, bytes]) -> None:
        with self._home.log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _BOOT, _PACKAGE],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=environ,
                cwd="/",
                start_new_session=True,
            )
        process.returncode = 0  # The broker reaps all children alike.
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(order)  # Shorter than a pipe is deep.
