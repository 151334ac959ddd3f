"""Memory growth is one setting for all GPUs that a process sees."""

import ast
from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step, literal
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.rules.growth_with_limit import GROWTH

_RESTRICTS = ("tf.config.set_visible_devices", "tf.config.experimental.set_visible_devices")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    growths = list(program.calls(*GROWTH))
    values = {literal(one.argument(1, "enable")) for one in growths}
    if {True, False} <= values and not _in_arms(growths):
        yield Seen(growths[-1].line)
    elif (machine.count or 0) > 1 and growths and all(map(_first_only, growths)):
        restricted = any(one.name in _RESTRICTS for one in program.steps)
        named = any(one.name == "environ CUDA_VISIBLE_DEVICES" for one in program.steps)
        if len({ast.dump(one.call.args[0]) for one in growths}) == 1 and not restricted | named:
            yield Seen(growths[0].line)


def _in_arms(growths: list[Step]) -> bool:
    return not all(one.may_follow(growths[0]) for one in growths)


def _first_only(step: Step) -> bool:
    """`gpus[0]`, and no loop over all of them."""
    match step.argument(0, "device"):
        case ast.Subscript(slice=ast.Constant()):
            return True
    return False


RULE = Rule(
    id="growth-differs",
    severity="error",
    sentence="Memory growth is set for some of the visible GPUs and not for others, which raises "
    "ValueError when TensorFlow starts.",
    fix="Set it for all: `for gpu in tf.config.list_physical_devices('GPU'): "
    "tf.config.experimental.set_memory_growth(gpu, True)`.",
    log=(r"Memory growth cannot differ between GPU devices",),
    code=_code,
)
