"""TensorFlow's pool on the CPU has a limit of 64 GiB unless it is told another."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen

_ON = ("1", "true")


def _machine(machine: Machine) -> Iterator[Seen]:
    value = machine.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "")
    if value.lower() in _ON and "TF_CPU_BFC_MEM_LIMIT_IN_MB" not in machine.environ:
        yield Seen(text=f"TF_CPU_ALLOCATOR_USE_BFC={value}")


RULE = Rule(
    id="cpu-pool-unlimited",
    severity="warning",
    sentence="TF_CPU_ALLOCATOR_USE_BFC is set without a limit, so TensorFlow may take 64 GiB of "
    "the machine's memory.",
    fix="Set TF_CPU_BFC_MEM_LIMIT_IN_MB, too, or remove it: `sublet run --memory` sets both.",
    machine=_machine,
)
