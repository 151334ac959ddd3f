"""`device_lib.list_local_devices` opens every GPU with TensorFlow's defaults."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step in program.calls("tf.python.client.device_lib.list_local_devices"):
        yield Seen(step.line)


RULE = Rule(
    id="lists-local-devices",
    severity="warning",
    sentence="device_lib.list_local_devices() starts TensorFlow on all GPUs and takes their whole "
    "memory, just to list them.",
    fix="Use tf.config.list_physical_devices('GPU'), which takes none.",
    code=_code,
)
