"""`holder.py NAME SECONDS`: a process that holds a lease itself."""

import sys
import time

import note

import sublet
from sublet.inside.current_lease import current

name, seconds = sys.argv[1:]
try:
    mine = sublet.lease("64MiB", name=name)
except sublet.SubletError as error:
    note.write("refused", name, said=f"{type(error).__name__}: {error}")
    sys.exit(3)
held = current()
assert held is not None
note.begin(name, {"job": mine.job, "attempt": held.attempt})
time.sleep(float(seconds))
note.write("end", name, code=0, job=mine.job, attempt=held.attempt)
