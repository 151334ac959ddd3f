"""Leases for tests, and real programs that run under them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from sublet.formats.lease_environment import leased_environment
from sublet.formats.oom_evidence import OomEvidence, read_evidence
from sublet.formats.usage_file import Reading, read_usage
from support.leased import cpu_lease, on_cpu, on_gpu

__all__ = ["on_cpu", "on_gpu", "start"]

PLAIN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("TF_", "CUDA_", "SUBLET_", "PYTHON"))
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a program ended, and what it left."""

    code: int
    out: str
    err: str
    dir: str

    @property
    def said(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("sublet: ")]

    @property
    def usage(self) -> list[Reading]:
        return read_usage(self.dir)

    @property
    def evidence(self) -> OomEvidence:
        return read_evidence(self.dir)


@dataclasses.dataclass(frozen=True)
class Program:
    """A script that has been started cold, as a stranger would start it."""

    process: subprocess.Popen[str]
    dir: str

    def wait(self) -> Ended:
        out, err = self.process.communicate()
        return Ended(self.process.returncode, out, err, self.dir)


@pytest.fixture(scope="module")
def start(
    real_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Program]]:
    """`start(script, **changes of the environment)` under a lease of 64 MiB on the CPU."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, leased: bool = True, **changes: str) -> Program:
        place = tmp_path_factory.mktemp("attempt")
        (place / "program.py").write_text(script)
        records = place / "records"
        records.mkdir()
        environ, _ = leased_environment(cpu_lease(records), {**PLAIN, **changes})
        if not leased:
            del environ["SUBLET_LEASE"]
        process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=place,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Program(process, str(records))

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
