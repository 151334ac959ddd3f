"""The limit of the model itself: full batches in process, for so many seconds.

`direct.py PATH SECONDS FILE`: leaves rows per second in the file.
"""

import sys
import time
from pathlib import Path

import numpy as np

from bench.programs.greedy import LARGEST, load


def main(path: str, seconds: float) -> float:
    """Measure rows per second."""
    call = load(path)
    rows = np.random.default_rng(0).random((LARGEST, 784), "float32")
    for _ in range(50):
        call(rows)
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        call(rows)
        count += LARGEST
    return count / (now - began)


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(str(main(sys.argv[1], float(sys.argv[2]))))
