"""What an engine says when it starts."""

import os
import subprocess
import sys

import pytest

COLD = """
import os
from sublet.engine.start_runtime import start_runtime, _filtered
start_runtime()
with _filtered():
    os.write(2, b"W0000 00:00:1.2 3 a.cc:1] this matters\\n")
    os.write(2, b"I0000 00:00:1.2 3 a.cc:1] this does not\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="with a card nothing is left out")
def test_an_engine_that_loads_tensorflow_itself_says_nothing_of_that() -> None:
    """One that is started warm has it loaded already, and never did."""
    ended = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    assert ended.stderr == "W0000 00:00:1.2 3 a.cc:1] this matters\n"
