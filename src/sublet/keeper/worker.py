"""In the worker, between the fork and its program: takes on the surroundings of the client."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import signal
import socket
import sys
from typing import NoReturn

from sublet.inside.warm_start import isolated_python

from ..formats import attempt_files, packets, worker_spec
from ..formats.worker_spec import WorkerSpec
from . import scheduling

_PR_SET_PDEATHSIG = 1


def enter(channel: socket.socket) -> WorkerSpec:
    """Wait for the start, then take on everything of the client but its program."""
    signal.set_wakeup_fd(-1)
    # The keeper sends "go" after it has written worker.json. If it dies or gets no order, the
    # channel closes: the program has not run, and must not.
    received = packets.receive(channel)
    if received is None:
        os._exit(0)
    packet, streams = received
    directory = packet["go"]
    spec = worker_spec.read(directory)
    if spec is None:
        os._exit(0)
    attempt_files.mark_run(directory)
    # In a session of its own: a stopped group whose last parent in the same session dies gets a
    # SIGHUP, and a killed keeper must not end a paused program. The kernel continues it instead,
    # because nobody else may be left to do so.
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    _set_streams(streams)
    for number in spec.get("closed", ()):
        os.close(number)
    with contextlib.suppress(OSError):
        for note in spec["notes"]:
            os.write(2, f"sublet: {note}\n".encode())
    for caught in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            ignored = caught in spec["ignored"]
            signal.signal(caught, signal.SIG_IGN if ignored else signal.SIG_DFL)
    for limit, (soft, hard) in spec["limits"].items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(int(limit), (soft, hard))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, spec["affinity"])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, spec["nice"])
    with contextlib.suppress(OSError):
        scheduling.enter(spec.get("service", scheduling.GUARANTEED))
    os.umask(spec["umask"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        print(f"sublet: the directory {spec['cwd']!r}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(126)
    gc.enable()
    return spec


def _set_streams(streams: list[int]) -> None:
    """Make these the descriptors 0, 1, 2 … of the program, and close all others."""
    # Moved up first: one of them may have a number that another is to get.
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, len(streams)) for number in streams]
    for target, number in enumerate(moved):
        os.dup2(number, target)
    os.closerange(len(streams), max(int(name) for name in os.listdir("/proc/self/fd")) + 1)


def run_cold(spec: WorkerSpec) -> NoReturn:
    """Become the program by exec."""
    words = spec["argv"]
    if isolated_python.FLAGS.intersection(spec.get("flags", ())):
        words = isolated_python.command(spec)
    argv = [os.fsencode(word) for word in words]
    environ = {os.fsencode(name): os.fsencode(value) for name, value in spec["environ"].items()}
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        print(f"sublet: {os.fsdecode(argv[0])}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
