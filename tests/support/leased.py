"""A process with TensorFlow under a lease on the CPU, in which tests run functions.

    test ──function, arguments──▶ child: TensorFlow, one memory pool
         ◀──result or exception──

It stays for a whole module, because TensorFlow takes seconds to start. What a function leaves in
`room` is there for the next one.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sublet.formats.lease import MIB, LeaseTerms
from sublet.formats.lease_environment import leased_environment

TESTS = Path(__file__).parents[1]
SAVED_MODELS = TESTS / "data" / "savedmodels"

PLAIN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("TF_", "CUDA_", "SUBLET_", "PYTHON"))
}


class Room(dict[str, Any]):
    """What functions keep between calls. A function that is sent finds that of the child."""

    def __reduce__(self) -> Any:
        return _room, ()


room = Room()


def _room() -> Room:
    return room


class Leased:
    """The test's side. `close` ends the child."""

    def __init__(self, directory: Path, mib: int) -> None:
        environ, _ = leased_environment(cpu_lease(directory, mib, of=4096), PLAIN)
        path = [environ["PYTHONPATH"], str(TESTS), *filter(None, sys.path)]
        self._connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.leased", str(theirs.fileno())],
            env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(path)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` in the child; what it raises is raised here."""
        self._connection.send_bytes(cloudpickle.dumps((function, args)))
        try:
            good, result = cloudpickle.loads(self._connection.recv_bytes())
        except EOFError:
            raise ChildProcessError(f"the child ended with {self.process.wait()}") from None
        if not good:
            raise result
        return result

    def close(self) -> None:
        self._connection.close()
        self.process.wait()


def _serve(connection: Connection) -> None:
    while True:
        try:
            function, args = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = (True, function(*args))
        except BaseException as error:
            answer = (False, error)
        connection.send_bytes(cloudpickle.dumps(answer))


def cpu_lease(directory: Path | str, mib: int = 64, of: int = 2048) -> LeaseTerms:
    return LeaseTerms(7, 1, "t0ken", "cpu", "cpu", None, mib * MIB, of * MIB, str(directory))


def gpu_lease(directory: Path | str = "/run/a1", mib: int = 1024, of: int = 8192) -> LeaseTerms:
    return LeaseTerms(7, 1, "t0ken", "gpu0", "gpu", "GPU-aa", mib * MIB, of * MIB, str(directory))


@pytest.fixture(scope="session")
def on_cpu() -> Callable[..., LeaseTerms]:
    return cpu_lease


@pytest.fixture(scope="session")
def on_gpu() -> Callable[..., LeaseTerms]:
    return gpu_lease


if __name__ == "__main__":
    from support import leased

    leased._serve(Connection(int(sys.argv[1])))
    # Threads of loads that never end must not keep the process.
    os._exit(0)
