"""Some variables are read while a package is loaded, and never again."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program, Step
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.variables import settings
from sublet.formats.import_variables import DEFAULTS

_OF_KERAS = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "KERAS_HOME")
_OF_TENSORFLOW = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "TF_ENABLED_DEVICE_TYPES")
_IMPORTS = ("import tensorflow", "import keras", "import tf_keras")


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    for flow in program.flows[:1]:
        loaded: str = ""
        for step in flow:
            if step.name in _IMPORTS and not step.arms:
                loaded = loaded or step.name
            name = step.name.removeprefix("environ ")
            if name != step.name and loaded and name in (*_OF_KERAS, *_OF_TENSORFLOW):
                yield from _without_effect(program, step, loaded)


def _without_effect(program: Program, step: Step, loaded: str) -> Iterator[Seen]:
    for one, name, value in settings(program, step.name.removeprefix("environ ")):
        if one.node is step.node and value != DEFAULTS.get(name, ""):
            yield Seen(step.line, (name, loaded))


RULE = Rule(
    id="variable-after-import",
    severity="warning",
    sentence="{A variable} is set after `{import}`, which has read it already: it has no effect.",
    fix="Set it above the imports.",
    code=_code,
)
