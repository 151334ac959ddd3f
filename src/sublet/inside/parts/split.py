"""`sublet.split`, inside the program: looks at the model, cuts it, and places its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..current_lease import say
from ..training import checks
from ..training.refused import Refused
from . import cuts, devices, needs, placement, trial
from .calls import Call, Graph, consumers, functional
from .needs import Need
from .part import Part, parts_of
from .pipeline import Pipeline

_MIB = 1 << 20


def split(
    model: Any,
    parts: int | None,
    names: Sequence[str] | None,
    batch_size: int,
    micro_batches: int | None,
    recompute: bool,
) -> Any:
    """The model in parts, each on its device. Raises Refused if it cannot be, and has changed
    nothing then but TensorFlow's logical devices, if it had not started."""
    import tensorflow as tf

    _check_count("batch_size", batch_size)
    if micro_batches is not None:
        _check_count("micro_batches", micro_batches)
    places = devices.chosen(parts, names)
    if not hasattr(model, "layers") and callable(model):
        with tf.device("CPU:0"):  # It may be too large for any other.
            model = model()
    _check(model)
    graph = Graph.of(model)
    if len(graph.calls) < len(places):
        raise Refused(
            f"{model.name} has {len(graph.calls)} layers, too few for {len(places)} parts.",
            "Ask for fewer parts.",
        )
    slots = needs.slots_of(model.optimizer if model.compiled else None)
    of_calls = needs.of_calls(graph, batch_size, slots)
    begins = _begins(graph, of_calls, batch_size, len(places))
    made = parts_of(graph, begins, places)
    pieces = micro_batches or 2 * len(made)
    of_parts = [
        _need(graph, part, of_calls[begin:end], batch_size, pieces if recompute else 1)
        for part, begin, end in zip(made, [0, *begins], [*begins, len(of_calls)], strict=True)
    ]
    _check_room(made, of_parts)
    pipeline = Pipeline(graph, made, pieces, recompute)
    pipeline.sums = trial.losses_are_sums(graph, model.name)
    placement.place(model, made)

    from .pipeline_model import PipelineModel

    whole = PipelineModel(model, pipeline, of_parts, batch_size)
    if model.compiled:
        settings = dict(model._compile_config.config)
        settings.update(optimizer=model.optimizer, jit_compile=False)
        whole.compile(**settings)
    rows = max(1, batch_size // pieces)
    if unequal := checks.unequal(model, rows):
        say(f"{model.name} in micro-batches is not quite the same: {unequal}")
    return whole


def _check_count(name: str, count: Any) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise Refused(f"{name} is {count!r}.", "Give a whole number above 0.")


def _check(model: Any) -> None:
    """Whether the model is one that can be cut."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.models.sequential import Sequential

    kind = type(model).__name__
    if not isinstance(model, TensorFlowTrainer):
        raise Refused(
            f"{kind} is not a model of Keras 3 on TensorFlow.", "Give one, or what builds one."
        )
    if isinstance(model, Sequential) and not model.built:
        raise Refused(
            f"{model.name} is not built yet: its shapes are not known.",
            "Begin it with keras.Input, or call its `build`.",
        )
    if functional(model) is None:
        raise Refused(
            f"{kind} computes in a `call` of its own, so there is no graph of layers to cut.",
            "Write it as keras.Model(inputs, outputs) or keras.Sequential.",
        )
    for step in ("train_step", "test_step", "predict_step"):
        if why := checks.refusal(model, step):
            raise Refused(f"{why}.", "Such a model cannot be split.")
    for method in ("compute_loss", "compute_metrics"):
        if getattr(type(model), method) is not getattr(TensorFlowTrainer, method):
            raise Refused(
                f"{kind}.{method} is the program's own.", "Give losses and metrics to `compile`."
            )


def _begins(graph: Graph, of_calls: Sequence[Need], rows: int, parts: int) -> list[int]:
    """With which calls the parts begin, but the first."""
    shared = _shared(graph.calls)
    arriving = [
        -1 if any(first < begin <= last for _, first, last in shared) else rows * size
        for begin, size in enumerate(_crossing(graph))
    ]
    found = cuts.balanced([need.total for need in of_calls], arriving, parts)
    if found is None:
        names = ", ".join(sorted({repr(name) for name, _, _ in shared}))
        raise Refused(
            f"There is no place to cut it into {parts} parts: the weights of {names} are used from "
            "beginning to end, and have to be in one part.",
            "Ask for fewer parts.",
        )
    return found


def _shared(calls: Sequence[Call]) -> list[tuple[str, int, int]]:
    """Layers with variables that are called more than once: first and last call of each."""
    used: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        for variable in call.variables:
            used.setdefault(id(variable), []).append(place)
    spans = {(one[0], one[-1]) for one in used.values() if one[0] < one[-1]}
    return [(calls[first].operation.name, first, last) for first, last in sorted(spans)]


def _crossing(graph: Graph) -> list[int]:
    """The bytes of a row that come from earlier calls, for each call that a part may begin with."""
    taken = consumers(graph.calls)
    crossing = [0] * len(graph.calls)
    for place, call in enumerate(graph.calls):
        for number, symbol in zip(call.outputs, call.symbols, strict=True):
            for begin in range(place + 1, max(taken.get(number, [place])) + 1):
                crossing[begin] += needs.row_size(symbol)
    return crossing


def _need(graph: Graph, part: Part, of_calls: Sequence[Need], rows: int, again: int) -> Need:
    """What a part takes: of its activations those of one in `again` micro-batches at a time, and
    what comes from other parts for the whole batch."""
    need = sum(of_calls, Need())
    symbols = {
        number: symbol
        for call in graph.calls
        for number, symbol in zip(call.outputs, call.symbols, strict=True)
    }
    arrives = sum(rows * needs.row_size(symbols[one]) for one in part.inputs if one in symbols)
    return Need(need.weights, need.gradients, need.optimizer, need.activations // again + arrives)


def _check_room(parts: Sequence[Part], of_parts: Sequence[Need]) -> None:
    """Whether the devices hold at least what does not depend on the batch."""
    wanted: dict[str, int] = {}
    for part, need in zip(parts, of_parts, strict=True):
        # Logical CPUs share one pool.
        pool = part.device if part.device.startswith("GPU") else "the CPU"
        wanted[pool] = wanted.get(pool, 0) + need.fixed
    for part in parts:
        pool = part.device if part.device.startswith("GPU") else "the CPU"
        limit = devices.limit(part.device)
        if limit is not None and wanted[pool] > limit:
            raise Refused(
                f"The weights on {pool}, with their gradients and what the optimizer keeps, need "
                f"{-(-wanted[pool] // _MIB)} MiB; the lease has {limit // _MIB} MiB there. It "
                f"lacks {-(-(wanted[pool] - limit) // _MIB)} MiB.",
                "Ask for more --memory, or for more parts and devices.",
            )
