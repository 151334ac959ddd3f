"""`outer.py NAME`: a program under a lease that runs others within it."""

import subprocess
import sys
from pathlib import Path

import note

name = sys.argv[1]
note.begin(name)
job = str(Path(__file__).with_name("job.py"))
for number in range(2):
    inner = f"{name}/{number}"
    words = ["run", "-q", "--memory", "64MiB", job, inner, "0.3", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "sublet", *words], capture_output=True, text=True, check=False
    )
    note.write("inner", inner, code=done.returncode, expected=5, said=done.stderr[-500:])
note.end(name)
