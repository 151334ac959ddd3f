"""Python's API knows memory growth or a limit, and not both for one GPU."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step, literal
from sublet.doctor.rule import Rule, Seen

GROWTH = ("tf.config.set_memory_growth", "tf.config.experimental.set_memory_growth")
_LIMITS = (
    "tf.config.LogicalDeviceConfiguration",
    "tf.config.experimental.VirtualDeviceConfiguration",
)


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for flow in program.flows:
        growths = [one for one in flow if one.name in GROWTH and _on(one)]
        limits = [one for one in flow if one.name in _LIMITS and one.argument(0, "memory_limit")]
        for growth in growths:
            if any(growth.may_follow(limit) for limit in limits):
                yield Seen(growth.line)


def _on(step: Step) -> bool:
    return literal(step.argument(1, "enable")) is not False


RULE = Rule(
    id="growth-with-limit",
    severity="error",
    sentence="A GPU gets memory growth and a memory limit: after the limit growth raises "
    "ValueError, before it growth is dropped.",
    fix="Keep the limit, and set TF_FORCE_GPU_ALLOW_GROWTH=true for growth below it; or remove "
    "both, and let `sublet run --memory` set them.",
    log=(r"Cannot set memory growth on device when virtual devices configured",),
    code=_code,
)
