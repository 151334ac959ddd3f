"""A process with TensorFlow under a lease on the CPU, in which tests run functions.

    test ──function, arguments──▶ child: TensorFlow, one memory pool
         ◀──result or exception──

It stays for a whole module: TensorFlow takes seconds to start. What a function leaves in `room` is
there for the next.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle

from sublet.formats.lease import MIB, LeaseTerms
from sublet.formats.lease_environment import leased_environment

TESTS = Path(__file__).parents[1]
SAVED_MODELS = TESTS / "data" / "savedmodels"

_PLAIN = {
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
        lease = LeaseTerms(7, 1, "t0ken", "cpu", "cpu", None, mib * MIB, 4096 * MIB, str(directory))
        environ, _ = leased_environment(lease, _PLAIN)
        path = [environ["PYTHONPATH"], str(TESTS), *filter(None, sys.path)]
        self._line, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.leased", str(theirs.fileno())],
            env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(path)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` in the child; what it raises is raised here."""
        self._line.send_bytes(cloudpickle.dumps((function, args)))
        try:
            good, result = cloudpickle.loads(self._line.recv_bytes())
        except EOFError:
            raise ChildProcessError(f"the child ended with {self.process.wait()}") from None
        if not good:
            raise result
        return result

    def close(self) -> None:
        self._line.close()
        self.process.wait()


def _serve(line: Connection) -> None:
    while True:
        try:
            function, args = cloudpickle.loads(line.recv_bytes())
        except EOFError:
            return
        try:
            answer = (True, function(*args))
        except BaseException as error:
            answer = (False, error)
        line.send_bytes(cloudpickle.dumps(answer))


if __name__ == "__main__":
    from support import leased

    leased._serve(Connection(int(sys.argv[1])))
    # Threads of loads that never end must not keep the process.
    os._exit(0)
