"""CUDA stops reading CUDA_VISIBLE_DEVICES at the first name that it does not know."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not machine.gpus or visible.strip() in ("", "-1", "none", "NoDevFiles"):
        return
    for name in (one.strip() for one in visible.split(",")):
        if not _known(name, machine.gpus):
            text = f"CUDA_VISIBLE_DEVICES={visible}"
            yield Seen(words=(name, str(len(machine.gpus))), text=text)
            return


def _known(name: str, gpus: tuple[str, ...]) -> bool:
    if name.isdigit():
        return int(name) < len(gpus)
    return name.startswith("MIG-") or any(uuid.startswith(name) for uuid in gpus if name)


RULE = Rule(
    id="gpus-unknown",
    severity="error",
    sentence="CUDA_VISIBLE_DEVICES names a GPU that is not there ({which}; there are {how many}), "
    "and CUDA "
    "ignores whatever follows it.",
    fix="Use numbers from 0, or UUIDs as `nvidia-smi -L` prints them.",
    machine=_machine,
)
