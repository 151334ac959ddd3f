"""Every process that a benchmark starts, however deep: how it is started, weighed and ended.

This process adopts the orphans of its descendants, so that nothing which a peer or a broker left
behind escapes: `end_all` finds it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

_SET_CHILD_SUBREAPER = 36
_GRACE = 3.0


Child = psutil.Popen
Expired = psutil.TimeoutExpired


class Failed(Exception):
    """A measured program did not do its work, so there is no figure."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    words: Sequence[str | Path],
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    timeout: float = 120,
) -> None:
    """Run a command to its end with its words in `log`; Failed with their last lines if it fails.

    On a timeout only this process is killed; `end_all` ends what it had started.
    """
    with log.open("ab") as out:
        child = subprocess.Popen(
            words, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        code = finish(child, timeout)
    except Failed as late:
        raise Failed(f"{late}: {tail(log)}") from None
    if code != 0:
        raise Failed(f"exit code {code}: {tail(log)}")


def finish(child: subprocess.Popen[bytes], timeout: float) -> int:
    """Wait for a child and return its exit code; after the timeout it is killed and that is Failed.

    Not by Popen.wait: with a timeout it sleeps up to 50 ms between looks, and times that end with
    a process would fall on its steps.
    """
    number = os.pidfd_open(child.pid)
    try:
        ended, _, _ = select.select([number], [], [], timeout)
    finally:
        os.close(number)
        if child.poll() is None:
            child.kill()
    code = child.wait()
    if not ended:
        raise Failed(f"not done after {timeout:g} s")
    return code


def start(
    words: Sequence[str | Path], env: Mapping[str, str], log: Path, session: bool = False
) -> psutil.Popen:
    """Start a command with its words in `log`, in a session of its own if asked."""
    with log.open("ab") as out:
        return psutil.Popen(
            list(map(str, words)),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=session,
        )


def wait_for(
    holds: Callable[[], bool], what: str, timeout: float = 120, every: float = 0.02
) -> None:
    """Wait until a condition holds; Failed after the timeout."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not after {timeout:g} s")
        time.sleep(every)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; empty if it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def pss(pid: int) -> int:
    """Bytes of memory, shared pages counted by their share; 0 for a process that is gone."""
    return _rollup(pid, "Pss:")


def rss(pid: int) -> int:
    """Bytes of resident memory."""
    return _rollup(pid, "Rss:")


def cpu_seconds(pid: int) -> float:
    """Time on a processor of all threads that live, exact where ticks are too coarse."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def end_all() -> None:
    """End every descendant of this process: SIGTERM, grace, SIGKILL; and collect them."""
    me = psutil.Process()
    for number, grace in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        living = me.children(recursive=True)
        _signal(living, number)
        psutil.wait_procs(living, timeout=grace)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill(processes: Iterable[psutil.Process]) -> None:
    """End these at once, if they are still there."""
    _signal(processes, signal.SIGKILL)


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _rollup(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def tail(log: Path) -> str:
    """The last words, on one line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-300:]
