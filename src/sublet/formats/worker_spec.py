"""What a worker is to run and with what: spec.json, one record for all who write or read it.

The broker's backend writes it into the attempt's directory; keeper and worker read it before the
program runs. After that the program can change the file: whoever reads it later checks each value.
"""

from __future__ import annotations

import json
import os
from typing import NotRequired, TypedDict, cast

from . import attempt_files

NAME = "spec.json"


class ProgramSpec(TypedDict):
    """The program itself. Bytes of the operating system are text, as `os.fsdecode` makes it."""

    kind: str
    """script, module, code or command"""
    target: str
    args: list[str]
    argv: list[str]
    """The command line that starts it cold."""


class ProcessSpec(TypedDict):
    """A process, told apart from a later one with the same number by its start time."""

    pid: int
    start: int


class LogSpec(TypedDict):
    """The output files, and the size that they are kept within."""

    paths: list[str]
    limit: NotRequired[int]


class BrokerSpec(TypedDict):
    """How to start a broker, if the program needs one and none runs."""

    command: list[str]
    environ: dict[str, str]


class WorkerSpec(ProgramSpec):
    """All that a worker takes on, and what its keeper has to see to."""

    run: str
    """The id of the attempt."""
    flags: list[str]
    """Options of the interpreter."""
    cwd: str
    environ: dict[str, str]
    notes: list[str]
    """Lines for the program's stderr."""
    umask: int
    nice: int
    affinity: list[int]
    """The processors it may use; a broker may confine it to some of them for a while."""
    ignored: list[int]
    """Signals it ignores."""
    closed: list[int]
    """Those of the descriptors 0 to 2 that are closed."""
    limits: dict[str, tuple[int, int]]
    """Resource limits by number: soft, hard."""
    client: ProcessSpec | None
    """The process without which the job ends; None if it needs none."""
    time: float | None
    """Seconds the program may run, pauses not counted."""
    grace: float
    """Seconds between SIGTERM and SIGKILL when they are over."""
    service: str
    """guaranteed or opportunistic"""
    leave_children: bool
    """Whether what the program leaves behind may go on."""
    pids: NotRequired[int]
    """The most processes and threads, where a control group can hold them."""
    broker: BrokerSpec
    logs: LogSpec | None
    port: NotRequired[int]
    """The port that is held for a task of a cluster; 0 if none is."""


def write(directory: str, spec: WorkerSpec) -> None:
    """Write the spec into an attempt's directory."""
    with open(os.path.join(directory, NAME), "w", encoding="utf-8") as file:
        json.dump(spec, file)


def read(directory: str) -> WorkerSpec | None:
    """The spec of an attempt; None if it is not there or not whole."""
    return cast("WorkerSpec | None", attempt_files.read(directory, NAME))
