"""Said five times, then no more."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="large-host-tensors",
    severity="note",
    sentence="Tensors of {so many} bytes were allocated in the machine's memory, more than "
    "a tenth of what was free.",
    fix="Read large data with tf.data in batches if the machine runs short.",
    log=(r"Allocation of (\d+) exceeds 10% of free system memory",),
)
