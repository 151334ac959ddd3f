"""What starts TensorFlow's runtime, and what has to be said before that."""

import ast
import re
from collections.abc import Iterator

from sublet.doctor.program import Flow, Program, Step

SESSIONS = ("tf1.Session", "tf1.InteractiveSession", "tf1.train.MonitoredSession")
DEVICE_LISTS = (
    "tf.python.client.device_lib.list_local_devices",
    "tf.config.list_logical_devices",
    "tf.config.experimental.list_logical_devices",
    "tf.test.gpu_device_name",
    "tf.test.is_gpu_available",
    "tf1.test.is_gpu_available",
    "tf1.test.gpu_device_name",
)
LISTS_CARDS = ("tf.config.list_physical_devices", "tf.config.experimental.list_physical_devices")
"""These call cuInit, and start no runtime."""
MODELS = re.compile(
    r"keras\.(Sequential|Model|models\.(Sequential|Model|load_model|clone_model)"
    r"|applications\.[\w.]+|saving\.load_model)\(\)"
)
_OPERATIONS = frozenset(
    [
        "Variable",
        "abs",
        "add",
        "argmax",
        "argmin",
        "cast",
        "clip_by_value",
        "concat",
        "constant",
        "convert_to_tensor",
        "cumsum",
        "divide",
        "einsum",
        "equal",
        "exp",
        "expand_dims",
        "eye",
        "fill",
        "gather",
        "greater",
        "identity",
        "less",
        "linspace",
        "matmul",
        "maximum",
        "minimum",
        "multiply",
        "norm",
        "not_equal",
        "one_hot",
        "ones",
        "ones_like",
        "pad",
        "pow",
        "range",
        "reduce_max",
        "reduce_mean",
        "reduce_min",
        "reduce_sum",
        "repeat",
        "reshape",
        "reverse",
        "round",
        "scan",
        "shape",
        "sigmoid",
        "sign",
        "sin",
        "size",
        "sort",
        "split",
        "sqrt",
        "square",
        "squeeze",
        "stack",
        "subtract",
        "tanh",
        "tensordot",
        "tile",
        "transpose",
        "unstack",
        "where",
        "zeros",
        "zeros_like",
    ]
)
_MODULES = ("tf.math.", "tf.linalg.", "tf.nn.", "tf.signal.", "tf.image.", "tf.strings.")
_RANDOM = re.compile(r"tf\.random\.(?!set_seed|experimental|Generator$|Algorithm)\w+")
_OTHERS = (
    "tf.random.Generator.from_seed",
    "tf.distribute.MirroredStrategy",
    "tf.distribute.OneDeviceStrategy",
    "tf.saved_model.load",
    "keras.models.load_model",
    "keras.saving.load_model",
    "tf.config.experimental.get_memory_info",
    *(f"tf.data.Dataset.{name}" for name in ("from_tensor_slices", "from_tensors", "range")),
)
_WITH_WEIGHTS = re.compile(
    r"keras\.layers\.(Dense|Conv\w+|LSTM|GRU|Embedding|BatchNormalization)\(\)"
)
_WORKING = ("fit", "predict", "evaluate", "train_on_batch", "predict_on_batch", "fit_generator")


def works_with_model(step: Step) -> bool:
    """Whether it trains, evaluates or calls a Keras model."""
    receiver, _, method = step.name.rpartition(".")
    return method in _WORKING and MODELS.fullmatch(receiver) is not None


def starts_runtime(program: Program, step: Step) -> bool:
    """Whether this step starts the runtime, if nothing has before; what is not known does not."""
    name = step.name
    if name in DEVICE_LISTS or name in SESSIONS:
        return True
    if _builds_graph(program, step):
        return False
    if name in _OTHERS or _RANDOM.fullmatch(name) or name.startswith(_MODULES):
        return True
    if name.startswith("tf.") and name[3:] in _OPERATIONS:
        return True
    if _WITH_WEIGHTS.fullmatch(name):
        return True
    return works_with_model(step) or _builds(step, program)


def _builds(step: Step, program: Program) -> bool:
    """A Sequential model that knows its input makes its weights at once."""
    if step.name not in ("keras.Sequential", "keras.models.Sequential"):
        return False
    layers = [one for one in ast.walk(step.call) if isinstance(one, ast.Call)]
    names = [program.name_of(one) for one in layers]
    shaped = any(
        word.arg in ("input_shape", "input_dim") for one in layers for word in one.keywords
    ) or any(name in ("keras.Input()", "keras.layers.Input()") for name in names)
    return shaped and any(_WITH_WEIGHTS.fullmatch(name) for name in names)


def _builds_graph(program: Program, step: Step) -> bool:
    if program.graph_mode or any(one.endswith(".as_default()") for one in step.within):
        return True
    function = program.functions.get(step.function)
    decorators = [] if function is None else map(program.name_of, function.decorator_list)
    # What a dataset maps, and what TensorFlow traces, does not run where it stands.
    return any(name.startswith("tf.function") for name in decorators)


def first_start(program: Program, flow: Flow, before: Step | None = None) -> Step | None:
    """The first step of a flow that starts the runtime, if it precedes `before` in one run."""
    for step in flow:
        if step is before:
            return None
        if starts_runtime(program, step) and (before is None or before.may_follow(step)):
            return step
    return None


def too_late(program: Program, names: tuple[str, ...]) -> Iterator[tuple[Step, Step]]:
    """The calls of these that come after the runtime has started, and what has started it."""
    for flow in program.flows:
        for step in flow:
            if step.name in names and (start := first_start(program, flow, step)) is not None:
                yield step, start
