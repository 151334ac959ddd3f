"""An empty CUDA_VISIBLE_DEVICES, or -1, hides all GPUs."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if machine.gpus and visible is not None and visible.strip() in ("", "-1", "none", "NoDevFiles"):
        yield Seen(words=(visible or "empty",), text=f"CUDA_VISIBLE_DEVICES={visible}")


RULE = Rule(
    id="gpus-hidden",
    severity="warning",
    sentence="CUDA_VISIBLE_DEVICES is {empty}, so programs see none of this machine's GPUs.",
    fix="unset CUDA_VISIBLE_DEVICES",
    machine=_machine,
)
