"""A warm process keeps no pages of its libraries that it can have back from their files."""

import subprocess
import sys

LOOK = """
import numpy
from sublet.nursery import release_pages

def resident():
    found = [size for _, _, size in release_pages._clean()]
    return max(found)

numpy.linalg.inv(numpy.eye(3))
before = resident()
released = release_pages.release()
print(released >= before, resident() < before)
# What was relocated or written is still there, and what was let go comes back.
print(numpy.linalg.inv(numpy.eye(3)).tolist() == numpy.eye(3).tolist())
"""


def test_clean_pages_go_and_come_back_when_they_are_used() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True", "True", "True"]
