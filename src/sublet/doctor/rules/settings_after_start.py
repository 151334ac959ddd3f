"""Devices and threads are configured once, when the runtime starts."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.runtime import too_late

SETTINGS = (
    *(
        f"tf.config.{place}{name}"
        for place in ("", "experimental.")
        for name in (
            "set_memory_growth",
            "set_visible_devices",
            "set_logical_device_configuration",
            "set_virtual_device_configuration",
        )
    ),
    "tf.config.threading.set_inter_op_parallelism_threads",
    "tf.config.threading.set_intra_op_parallelism_threads",
)


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for step, start in too_late(program, SETTINGS):
        yield Seen(step.line, (step.name, f"line {start.line}"))


RULE = Rule(
    id="settings-after-start",
    severity="error",
    sentence="{A setting} comes after TensorFlow has started ({where}), when devices and threads "
    "can no longer "
    "be configured.",
    fix="Move it above everything that computes, lists logical devices or opens a session.",
    log=(
        r"(?:Physical|Virtual|Visible) devices cannot be modified after being initialized",
        r"Int(?:ra|er) op parallelism cannot be modified after initialization",
    ),
    code=_code,
)
