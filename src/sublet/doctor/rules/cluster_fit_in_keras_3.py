"""Keras 3 trains on several workers with its own loop only, not with `fit`."""

from collections.abc import Iterator

from sublet.doctor.machine import Machine
from sublet.doctor.program import Program
from sublet.doctor.rule import Rule, Seen
from sublet.doctor.rules.strategy_after_start import STRATEGIES
from sublet.doctor.runtime import works_with_model
from sublet.doctor.variables import settings

_CLUSTERS = (
    *STRATEGIES,
    "tf.distribute.ParameterServerStrategy",
    "tf.distribute.experimental.ParameterServerStrategy",
)

_OTHERS = tuple(
    f"tf.distribute.{name}" for name in ("MirroredStrategy", "TPUStrategy", "OneDeviceStrategy")
)
"""Beside one of these, nobody knows which strategy the model is for."""


def _code(program: Program, machine: Machine) -> Iterator[Seen]:
    legacy = any(True for _ in settings(program, "TF_USE_LEGACY_KERAS"))
    if not machine.keras_3 or legacy or "tf_keras" in program.text:
        return
    clusters = list(program.calls(*_CLUSTERS))
    fits = [step for step in program.steps if step.name.endswith(".fit") and works_with_model(step)]
    if clusters and fits and not any(program.calls(*_OTHERS)):
        yield Seen(fits[0].line, (clusters[0].name.rpartition(".")[2],))


RULE = Rule(
    id="cluster-fit-in-keras-3",
    severity="error",
    sentence="Model.fit on several workers ({which}) does not work with Keras 3.",
    fix="Install tf_keras and set TF_USE_LEGACY_KERAS=1, or write the training loop yourself.",
    log=(
        r"unsupported type \(<class 'tensorflow\.python\.distribute\.values\.PerReplica'>\) to a "
        r"Tensor",
    ),
    code=_code,
)
