"""Without NVIDIA's driver TensorFlow computes on the CPU."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    """A machine without a card needs no driver."""
    if machine.card and machine.driver:
        yield Seen(words=(machine.driver,), text="an NVIDIA card is on the PCI bus")


RULE = Rule(
    id="no-driver",
    severity="error",
    sentence="This machine has an NVIDIA card that programs cannot use: {why}.",
    fix="Install NVIDIA's driver; start a container with --gpus all.",
    machine=_machine,
)
