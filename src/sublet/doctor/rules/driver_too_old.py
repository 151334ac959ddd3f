"""The driver has to know the CUDA that TensorFlow was built with."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    if machine.too_old:
        yield Seen(words=(machine.too_old,), text=f"TensorFlow {machine.tensorflow}")


RULE = Rule(
    id="driver-too-old",
    severity="error",
    sentence="TensorFlow cannot use the GPU: {why}.",
    fix="Update NVIDIA's driver, or install a TensorFlow that was built with an older CUDA.",
    log=(
        r"(CUDA driver version is insufficient for CUDA runtime version)",
        r"(CUDA_ERROR_UNSUPPORTED_PTX_VERSION)",
    ),
    machine=_machine,
)
