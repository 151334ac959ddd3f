"""Jobs that run on their own: submit them, look at them, wait for them, cancel or pause them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Unpack

from sublet.client import job_request
from sublet.client.connection import Connection, Reconnects, ask, connect_or_start
from sublet.client.options import QueueOptions
from sublet.home import Home
from sublet.wire import PROTOCOL
from sublet.wire.messages import AskJobs, Done, JobAction, Jobs, Queued, Verb, Watch
from sublet.wire.pack import pack
from sublet.wire.rows import JobRow


class Job:
    """A submitted job, known by its number."""

    def __init__(self, id: int) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"sublet.Job({self.id})"

    def _repr_html_(self) -> str:
        from sublet.views.job_table import details_html

        return details_html(self.status(), time.time())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def status(self) -> JobRow:
        """The row that `sublet ps` shows of it."""
        return listing((self.id,)).rows[0]

    def wait(self, timeout: float | None = None) -> JobRow:
        """Wait until it has finished; raises TimeoutError after `timeout` seconds."""
        return wait([self.id], timeout)[0]

    async def wait_async(self, timeout: float | None = None) -> JobRow:
        """The same as `wait`, in an event loop."""
        import asyncio

        return await asyncio.to_thread(self.wait, timeout)

    async def status_async(self) -> JobRow:
        """The same as `status`, in an event loop."""
        import asyncio

        return await asyncio.to_thread(self.status)

    def cancel(self) -> None:
        """End it, or take it out of the queue."""
        act("cancel", [self.id])

    def pause(self) -> None:
        """Stop it for now; one that runs keeps its lease."""
        act("pause", [self.id])

    def resume(self) -> None:
        """Let a paused job go on."""
        act("resume", [self.id])

    def retry(self) -> None:
        """Run a finished job again, with this process's environment."""
        act("retry", [self.id])


def submit(
    words: Sequence[str],
    memory: str = "auto",
    *,
    after: Iterable[int | Job] = (),
    after_ok: Iterable[int | Job] = (),
    profile: bool | str | os.PathLike[str] = False,
    **options: Unpack[QueueOptions],
) -> Job:
    """Put a program into the queue: `sublet.submit(["train.py", "--lr", "0.1"], memory="2GiB")`.

    The options are those of `sublet submit`: device, cpus, on_oom, name, python, cold,
    leave_children, priority, service, time and grace (seconds, or "2h"), after and after_ok (jobs
    or their numbers), retries, requeue, split, profile (True, or a directory).
    """
    if profile is False:
        return submit_array(words, (), memory, after=after, after_ok=after_ok, **options)[0]
    from sublet.client.profile import checked_directory
    from sublet.client.profile_starts import start_detached

    logdir = None if isinstance(profile, bool) else checked_directory(profile)
    job = submit_array(words, (), memory, after=after, after_ok=after_ok, **options)[0]
    start_detached(job.id, logdir)
    return job


def submit_array(
    words: Sequence[str],
    indexes: Iterable[int],
    memory: str = "auto",
    *,
    at_once: int = 0,
    arguments: Sequence[Sequence[str]] = (),
    after: Iterable[int | Job] = (),
    after_ok: Iterable[int | Job] = (),
    **options: Unpack[QueueOptions],
) -> list[Job]:
    """One job for each index, `at_once` of them at a time; without indexes, a single job.

    `{index}` in the words is replaced by the index; SUBLET_ARRAY_INDEX has it too. With
    `arguments`, the program has these in place of the words behind its name: a list for each index.
    """
    spec = job_request.job_without_client(
        words, memory, after=_numbers(after), after_ok=_numbers(after_ok), **options
    )
    tree = {
        "type": "submit",
        "spec": spec,
        "token": os.urandom(16).hex(),
        "indexes": tuple(indexes),
        "at_once": at_once,
        "arguments": tuple(tuple(map(os.fsencode, each)) for each in arguments),
        "protocol": PROTOCOL,
    }
    return [Job(number) for number in ask(pack(tree), Queued).jobs]


def listing(numbers: tuple[int, ...] = (), live: int = 40, finished: int = 5) -> Jobs:
    """These jobs; without numbers, the live ones and those that ended last."""
    return ask(AskJobs(numbers, live, finished), Jobs)


def with_gangs(numbers: Sequence[int]) -> tuple[int, ...]:
    """These jobs; a task of a cluster stands for all of it."""
    rows = listing(tuple(numbers)).rows
    return tuple(dict.fromkeys(number for row in rows for number in row.gang or (row.id,)))


def exit_code(rows: Sequence[JobRow]) -> int:
    """The first exit code that is not 0; of a cluster, that of the task that failed first."""
    if (failed := next((row for row in rows if row.code), None)) is None:
        return 0
    first = first_failure([row for row in rows if row.gang and row.gang == failed.gang])
    return (first or failed).code or 0


def first_failure(rows: Sequence[JobRow]) -> JobRow | None:
    """The task of a cluster that failed first; None if none has. Those that were ended because of
    it have not failed."""
    failed = [row for row in rows if row.code]
    return min(failed, key=lambda row: (row.cause == "stopped", row.since, row.id), default=None)


def act(verb: Verb, numbers: Sequence[int]) -> tuple[str, ...]:
    """Do this to all of these jobs, or to none; finished ones may be passed over. Returns what was
    done, a sentence for each job."""
    environ = dict(os.environb) if verb == "retry" else {}
    return ask(JobAction(verb, tuple(numbers), environ), Done).said


def wait(
    numbers: Sequence[int],
    timeout: float | None = None,
    on_change: Callable[[JobRow], None] = lambda row: None,
) -> list[JobRow]:
    """Wait until all of these jobs have finished, through the death of any broker.

    Raises TimeoutError after `timeout` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    ended: dict[int, JobRow] = {}
    with JobWatcher(numbers) as watcher:
        while left := [number for number in numbers if number not in ended]:
            for row in watcher.changes(deadline):
                on_change(row)
                if row.state == "finished":
                    ended[row.id] = row
                else:
                    ended.pop(row.id, None)
            if deadline is not None and time.monotonic() >= deadline and left:
                missing = [number for number in numbers if number not in ended]
                if missing:
                    raise TimeoutError(f"job {missing[0]} has not finished in {timeout} s")
    return [ended[number] for number in numbers]


class JobWatcher:
    """Receives the changes of some jobs; turns to the next broker when one is gone."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = tuple(numbers)
        self._connection: Connection | None = None
        self._reconnects = Reconnects(Home.find())

    def __enter__(self) -> "JobWatcher":
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def changes(self, deadline: float | None = None) -> list[JobRow]:
        """The next rows; none if the deadline came first or the broker has changed."""
        if self._connection is None:
            self._connection = self._watch(connect_or_start(Home.find()))
        sock = self._connection.frames.sock
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            reply = self._connection.receive()
        except TimeoutError:
            return []
        except OSError:
            reply = None
        if isinstance(reply, Jobs):
            return list(reply.rows)
        self._connection.close()
        self._connection = None

        def pause(seconds: float) -> bool:
            left = seconds if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            time.sleep(min(seconds, left))
            return False

        with contextlib.suppress(TimeoutError):
            self._connection = self._watch(self._reconnects.connect(pause))
        return []

    def _watch(self, connection: Connection) -> Connection:
        with contextlib.suppress(OSError):  # It shows when no answer comes.
            connection.send(Watch(self._numbers))
        return connection


def _numbers(jobs: Iterable[int | Job]) -> tuple[int, ...]:
    return tuple(job.id if isinstance(job, Job) else int(job) for job in jobs)
