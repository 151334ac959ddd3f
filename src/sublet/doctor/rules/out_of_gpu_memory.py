"""TensorFlow's pool on a GPU was full."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="out-of-gpu-memory",
    severity="error",
    sentence="There was no room in TensorFlow's GPU memory for a tensor ({its size}).",
    fix="Use a smaller batch, a larger lease (`sublet run --memory`), or let Sublet "
    "split batches: `sublet run --on-oom split`.",
    log=(
        r"(?:OOM when allocating|Out of memory allocating)[^\n]{0,40}shape ?(\[[0-9, ]*\])"
        r"[^\n]{0,200}allocator GPU_\d+_bfc",
        r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate (\S+)(?![^\n]{0,400}not a "
        r"failure)",
        r"Dst tensor is not initialized",
    ),
)
