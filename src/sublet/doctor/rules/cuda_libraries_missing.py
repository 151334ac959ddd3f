"""TensorFlow's wheel brings no CUDA unless it is asked for."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.rule import Rule, Seen


def _machine(machine: Machine) -> Iterator[Seen]:
    if not machine.gpus:
        return
    if machine.built.get("is_cuda_build") is False:
        yield Seen(words=("it was built without CUDA",), text=f"TensorFlow {machine.tensorflow}")
    elif machine.missing:
        yield Seen(
            words=(f"{', '.join(machine.missing)} cannot be found",),
            text=f"TensorFlow {machine.tensorflow}",
        )


RULE = Rule(
    id="cuda-libraries-missing",
    severity="error",
    sentence="TensorFlow cannot use the GPU: {why}.",
    fix="pip install 'tensorflow[and-cuda]'",
    log=(
        r"(Cannot dlopen some GPU libraries)",
        r"(Could not load dynamic library '[^'\n]+')",
        r"(DNN library is not found)",
    ),
    machine=_machine,
)
