"""`job.py NAME SECONDS CODE [tensorflow] [child]`: run for a while, then exit with a code."""

import subprocess
import sys
import time

import note

name, seconds, code, *options = sys.argv[1:]
note.begin(name)
if "child" in options:
    # Detached, without a word of ours in its environment.
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    note.write("child", name, child=child.pid)
if "tensorflow" in options:
    import tensorflow as tf

    assert float(tf.reduce_sum(tf.ones((64, 64)))) == 4096.0
until = time.monotonic() + float(seconds)
while time.monotonic() < until:
    time.sleep(0.02)
note.end(name, int(code))
sys.exit(int(code))
