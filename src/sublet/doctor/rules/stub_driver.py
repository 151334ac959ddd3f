"""The CUDA toolkit has a libcuda.so for linking that is no driver."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    for directory in machine.stubs:
        yield Seen(words=(directory,), text="LD_LIBRARY_PATH")


RULE = Rule(
    id="stub-driver",
    severity="error",
    sentence="The CUDA toolkit's stub is loaded in place of NVIDIA's driver: {where}.",
    fix="Remove that directory from LD_LIBRARY_PATH.",
    log=(r"(CUDA_ERROR_STUB_LIBRARY)", r"(CUDA driver is a stub library)"),
    machine=_machine,
)
