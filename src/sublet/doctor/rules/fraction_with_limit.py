"""A fraction and logical devices are two limits for one pool."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen

_OPTIONS = ("tf1.GPUOptions", "tf1.GPUOptions.Experimental")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step in program.calls("tf1.GPUOptions"):
        experimental = step.keyword("experimental")
        if step.keyword("per_process_gpu_memory_fraction") is None or experimental is None:
            continue
        words = getattr(experimental, "keywords", ())
        if any(word.arg == "virtual_devices" for word in words):
            yield Seen(step.line)


RULE = Rule(
    id="fraction-with-limit",
    severity="error",
    sentence="per_process_gpu_memory_fraction is set together with virtual devices, and "
    "TensorFlow refuses both limits at once.",
    fix="Remove the fraction; under `sublet run` the lease is the limit.",
    log=(r"invalid to set per_process_gpu_memory_fraction when virtual_devices is set",),
    code=_code,
)
