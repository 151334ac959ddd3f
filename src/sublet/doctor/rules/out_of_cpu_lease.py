"""The CPU's pool has a limit when there is a lease."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="out-of-cpu-lease",
    severity="error",
    sentence="There was no room in the program's lease on the CPU for a tensor ({its size}).",
    fix="Use a smaller batch, a larger lease (`sublet run --memory`), or let Sublet "
    "split batches: `sublet run --on-oom split`.",
    log=(
        r"OOM when allocating[^\n]{0,40}shape ?(\[[0-9, ]*\])[^\n]{0,200}allocator "
        r"(?:bfc_cpu_allocator_for_gpu|mklcpu|cpu)",
        r"Allocator \((?:bfc_cpu_allocator_for_gpu|mklcpu)\) ran out of memory trying to allocate "
        r"(\S+)",
    ),
)
