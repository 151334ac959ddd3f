"""`caller.py NAME SECONDS`: calls a served model through `sublet.connect`; counts its answers."""

import sys
import time
from collections import Counter

import note
import numpy as np

import sublet
from sublet.channel.codes import Code

name, seconds = sys.argv[1:]
counts: Counter[str] = Counter()
until = time.monotonic() + float(seconds)
model = None
while time.monotonic() < until:
    try:
        model = model or sublet.connect("half")
        answer = model.run(np.array([2.0], np.float32), timeout=20)
        counts["right" if float(np.ravel(answer)[0]) == 3.0 else "wrong"] += 1
    except sublet.ServingError as error:
        counts[Code(error.code).name] += 1
        time.sleep(0.05)
    except Exception as error:
        note.write("odd", name, said=repr(error))
        break
    time.sleep(0.01)
note.write("calls", name, counts=dict(counts))
