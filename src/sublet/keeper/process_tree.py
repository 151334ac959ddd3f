"""Processes as /proc shows them: identity, descendants, memory; and signals to them."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

_OWN_CHILDREN = "/proc/thread-self/children"


def boot() -> str:
    """The identity of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None if it is gone or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def name(pid: int) -> str:
    """The kernel's name of a process: the first 15 bytes of its program's name."""
    text = read_file(pid, "comm")
    if text is None:
        return "a process"
    return "".join(
        one if one.isprintable() else "?" for one in text.decode(errors="replace").strip()
    )


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def is_alive(pid: int, start: int) -> bool:
    """Whether this very process still runs."""
    return start_time(pid) == start


def descendants(root: int) -> list[int]:
    """All living processes below `root`, zombies left out."""
    found: list[int] = []
    queue = [root]
    while queue:
        for child in _children(queue.pop()):
            queue.append(child)
            if start_time(child) is not None:
                found.append(child)
    return found


def threads(pid: int) -> list[int]:
    """The threads of a process; none if it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def stands(pid: int) -> bool:
    """Whether every thread of a process is stopped, or has ended."""
    # A sleeping thread may be in the middle of a fork, so only stopped ones count.
    states = [_stat(pid, thread) for thread in threads(pid)]
    return all(fields is None or fields[0] in ("T", "t", "Z", "X") for fields in states)


class Stat(NamedTuple):
    """What the kernel knows of a process."""

    parent: int
    session: int
    start: int


def everybody() -> dict[int, Stat]:
    """All living processes, zombies left out."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) and fields[0] not in ("Z", "X"):
            found[int(entry)] = Stat(int(fields[1]), int(fields[3]), int(fields[19]))
    return found


def related(processes: dict[int, Stat], known: set[int]) -> set[int]:
    """These processes of a tree, and all that can be found through them.

    Descendants of a process of the tree belong to it. So do members of its session: the worker has
    made one of its own, which processes can only leave for a new one. The number of a session is
    not used again while a process is in it.
    """
    found = known & processes.keys()
    while True:
        sessions = {processes[pid].session for pid in found}
        more = {
            pid for pid, now in processes.items() if now.parent in found or now.session in sessions
        }
        if more <= found:
            return found
        found |= more


def marked(processes: dict[int, Stat], mark: str) -> set[int]:
    """The processes that were started with `mark` in their environment."""
    needle = mark.encode()
    return {pid for pid in processes if needle in (read_file(pid, "environ") or b"")}


def added_memory(pids: list[int]) -> int:
    """The memory that these processes add to the machine.

    For one process, its private pages. Several may share pages, so for them each page is divided by
    the number of processes that share it (PSS), which may include the nursery.
    """
    parts = [_memory(pid) for pid in pids]
    if len(pids) == 1:
        return parts[0][1]
    return sum(pss for pss, _ in parts)


def resident_memory(pid: int) -> int:
    """All pages a process has in memory, whoever shares them; 0 if it is gone. Quick to read."""
    pages = (read_file(pid, "statm") or b"0 0").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def processor_time(pids: list[int]) -> float:
    """Processor seconds of these processes and of their children that have ended."""
    found = (_stat(pid) for pid in pids)
    ticks = sum(int(number) for fields in found if fields is not None for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def shared_memory(pid: int) -> int:
    """A process's proportional share of the machine's memory (PSS)."""
    return _memory(pid)[0]


def send(pids: list[int], number: int) -> None:
    """Signal each of them; one that is gone is no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def send_exactly(processes: dict[int, int], number: int) -> None:
    """Signal processes by number and start time: never one that has got such a number since."""
    for pid, start in processes.items():
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if is_alive(pid, start):
                signal.pidfd_send_signal(descriptor, number)
        except OSError:
            pass
        finally:
            os.close(descriptor)


def end(root: int, number: int) -> None:
    """Signal everything below `root`; what is stopped is woken, so that it can act on it."""
    pids = descendants(root)
    send(pids, number)
    if number != signal.SIGKILL:
        send(pids, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    """The children of a process, as the kernel lists them for each of its threads."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                children += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.exists(f"/proc/{pid}/task") and not os.path.exists(_OWN_CHILDREN):
            return _children_by_parent(pid)  # A kernel without CONFIG_PROC_CHILDREN.
    except OSError:
        pass
    return children


def _children_by_parent(parent: int) -> list[int]:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[1]) == parent]


def _memory(pid: int) -> tuple[int, int]:
    """PSS and private bytes of a process; zeros if it is gone."""
    pss = private = 0
    for line in (read_file(pid, "smaps_rollup") or b"").splitlines():
        if line.startswith(b"Pss:"):
            pss = int(line.split()[1]) * 1024
        elif line.startswith(b"Private_"):
            private += int(line.split()[1]) * 1024
    return pss, private


def _stat(pid: int, thread: int | None = None) -> list[str] | None:
    """The fields of /proc/pid/stat from the state on; the name before it may hold anything."""
    text = read_file(pid, "stat" if thread is None else f"task/{thread}/stat")
    return None if text is None else text.rpartition(b")")[2].decode().split()


def read_file(pid: int, name: str) -> bytes | None:
    """A file of a process in /proc; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None
