"""The pool frees empty regions before it fails."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="pool-at-its-limit",
    severity="warning",
    sentence="TensorFlow's pool has reached its limit, and gives memory back and "
    "takes it again, which is slow.",
    fix="Use a smaller batch, or a larger lease: `sublet run --memory`.",
    log=(r"Garbage collection: deallocate free memory regions",),
)
