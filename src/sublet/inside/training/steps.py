"""The functions that Keras calls for each step of `fit`, `evaluate` and `predict`, which split
batches that do not fit."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from .. import oom
from ..current_lease import current, say
from ..optimizer_variables import variables_of
from . import batch, checks, memory, own_checks, sizes
from .micro_batches import MicroBatches
from .micro_step import MicroStep
from .own_step import OwnStep
from .remembered import Remembered
from .replica_step import ReplicaStep
from .replicas import Replicas

_MIB = 1 << 20


class OutOfMemory(MemoryError):
    """TensorFlow has run out of memory."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        """What it has raised."""


class LossStep:
    """What `train_function` and `test_function` of a model are."""

    def __init__(
        self,
        model: Any,
        trains: bool,
        replicas: Replicas | None = None,
        exact: bool = False,
    ) -> None:
        """`exact`: batches are split only if that gives the same, to rounding."""
        self._model = model
        self._exact = exact
        self._trains = trains
        self._replicas = replicas
        self._own = checks.has_own(model, "train_step" if trains else "test_step")
        self._step = self._step_of("mean")
        verb = "training" if trains else "evaluating"
        at_once = 1 if replicas is None else replicas.at_once
        self._sizes = MicroBatches(verb, _signature(model), _remembered(), at_once)
        self._built = False
        self._checked = False
        self._whole = False
        """Whether batches are not split, as that would not give the same."""

    def __call__(self, iterator: Iterator[Any]) -> Any:
        logs = None
        self._step.spec = _spec(iterator)
        for _, data in zip(range(self._model.steps_per_execution), iterator, strict=False):
            logs = self._run(_without_optionals(data))
        if logs is None:
            raise StopIteration
        return logs

    def _step_of(self, scalars: str) -> MicroStep:
        if self._own:
            return OwnStep(self._model, self._trains)
        if self._replicas is None:
            return MicroStep(self._model, self._trains, scalars)
        return ReplicaStep(self._model, self._trains, self._replicas, scalars)

    def choices(self) -> list[list[int]]:
        """How many rows are taken at a time, for `choose`."""
        return self._sizes.choices()

    def choose(self, choices: list[list[int]]) -> None:
        """Take as many rows at a time as before, so that all is rounded in the same way."""
        self._sizes.choose(choices)

    def _run(self, data: Any) -> Any:
        if not self._whole:
            try:
                data = batch.checked(data)
                if not self._built:
                    with _fewer_rows(self._model):
                        self._or_say_by_how_much(self._build, data)
            except batch.CannotBeCut as why:
                self._refuse(why)
        return self._taken(data)

    def _taken(self, data: Any) -> Any:
        """Take a step with the batch, with as many rows at a time as fit. Returns the metrics."""
        if self._whole:
            return self._step.whole(data)
        alone, rows = self._replicas is None, self._rows(data)
        try:
            with _fewer_rows(self._model):
                most = self._most(batch.part(data, 0, rows))
        except batch.CannotBeCut as why:
            self._refuse(why)
            return self._step.whole(data)
        while True:
            if (most < rows or not alone) and not self._check(data):
                return self._step.whole(data)
            part = sizes.largest_part(rows, most)
            if most < rows:
                draws = self._step.draws
                unequal = checks.unequal(self._model, part, draws) if self._trains else ""
                self._sizes.tell(rows, most, unequal)
            kept = self._values()
            try:
                if most >= rows and alone:
                    return _of_memory(self._step.whole, data)
                return _of_memory(self._step.split, data, part)
            except batch.CannotBeCut as why:  # Its graph is being made: nothing has run.
                self._refuse(why)
                return self._step.whole(data)
            except OutOfMemory as large:
                error = large.error
            if self._step.half_done:
                say(
                    f"the optimizer of {type(self._model).__name__} does not fit beside its "
                    "weights: that does not depend on the batch"
                )
                raise error
            self._put_back(kept)
            smaller = self._sizes.failed(batch.part(data, 0, rows), min(most, rows))
            if not smaller:
                _say_too_large(error)
                raise error
            most = smaller

    def _rows(self, data: Any) -> int:
        """How many rows of the batch one device has."""
        rows = batch.count(data)
        return rows if self._replicas is None else self._replicas.most(rows)

    def _most(self, data: Any) -> int:
        def attempt(rows: int) -> None:
            kept = self._values()
            try:
                _of_memory(self._step.one, data, rows)
            finally:
                self._put_back(kept)

        split_cost = _bytes_of(self._model) if self._trains else 0
        return int(self._or_say_by_how_much(self._sizes.most, data, attempt, split_cost))

    @staticmethod
    def _or_say_by_how_much(function: Callable[..., Any], *args: Any) -> Any:
        """Call what fails for want of memory only if not even one row fits."""
        try:
            return _of_memory(function, *args)
        except OutOfMemory as large:
            _say_too_large(large.error)
            raise large.error from None

    def _build(self, data: Any) -> None:
        """Make all variables now, the optimizer's too, so that no step makes any."""
        model = self._model
        kept = self._values()
        try:
            self._step.build(batch.part(data, 0, 1))
        finally:
            model.reset_metrics()
            self._put_back(kept)
        if self._trains and not self._own and model.optimizer and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if self._trains and self._replicas is not None:
            self._agree(self._replicas)
        self._built = True

    def _agree(self, replicas: Replicas) -> None:
        """Have all processes begin with the same."""
        model = self._model
        known = [*model.variables, *variables_of(model.optimizer)]
        for variable, value in zip(known, replicas.agreed(known), strict=True):
            variable.assign(value)

    def _check(self, data: Any) -> bool:
        """Whether this model may be split; found out when it has to be."""
        if not self._checked:
            self._checked = True
            kept = self._values()
            try:
                if self._trains and self._exact:
                    checks.equal(self._model, self._step.draws)
                with _fewer_rows(self._model):
                    self._judge(data)
            except batch.CannotBeCut as why:
                self._refuse(why)
            finally:
                self._put_back(kept)
        return not self._whole

    def _judge(self, data: Any) -> None:
        if isinstance(self._step, OwnStep):
            own_checks.judge(self._step, data)
            return
        kind = checks.found_kind(self._model, data)
        if kind != self._step.scalars:
            spec = self._step.spec
            self._step = self._step_of(kind)
            self._step.spec = spec

    def _refuse(self, why: Exception) -> None:
        self._whole = True
        if isinstance(self._step, OwnStep):
            self._step.refused = True
        say(f"{why}: its batches are not split")

    def _values(self) -> list[tuple[Any, Any]]:
        """The values of all that a step changes before the optimizer does. Reading copies nothing:
        TensorFlow does so when a variable is assigned to."""
        return [(one, _value(one)) for one in self._step.state()]

    @staticmethod
    def _put_back(values: list[tuple[Any, Any]]) -> None:
        for variable, value in values:
            variable.assign(value)


class PredictStep:
    """What `predict_function` of a model is."""

    def __init__(self, model: Any, whole: Callable[[list[Any]], Any]) -> None:
        self._model = model
        self._whole = whole
        """Keras' own, for a list of batches."""
        self._sizes = MicroBatches("predicting", _signature(model), _remembered())
        self._checked = False
        self._splits = True

    def __call__(self, batches: list[Any]) -> Any:
        return _joined([self._run(_without_optionals(data)) for data in batches])

    def _run(self, data: Any) -> Any:
        if not self._splits:
            return self._whole([data])
        try:
            data = batch.checked(data)
        except batch.CannotBeCut as why:
            return self._refuse(why, data)
        rows = batch.count(data)
        try:
            with _fewer_rows(self._model):
                most = self._sizes.most(data, lambda few: self._part(data, 0, few), 0)
            while True:
                if most < rows and not self._checked:
                    self._checked = True
                    with _fewer_rows(self._model):
                        checks.independent(self._model, data)
                if most < rows:
                    self._sizes.tell(rows, most, "")
                try:
                    return _joined([self._part(data, *ends) for ends in sizes.parts(rows, most)])
                except OutOfMemory:
                    most = self._sizes.failed(data, min(most, rows))
                    if not most:
                        raise
        except batch.CannotBeCut as why:
            return self._refuse(why, data)
        except OutOfMemory as large:
            _say_too_large(large.error)
            raise large.error from None

    def _part(self, data: Any, begin: int, end: int) -> Any:
        return _of_memory(self._whole, [batch.part(data, begin, end)])

    def _refuse(self, why: Exception, data: Any) -> Any:
        self._splits = False
        say(f"{why}: its batches are not split")
        return self._whole([data])


@contextlib.contextmanager
def _fewer_rows(model: Any) -> Iterator[None]:
    """Raises CannotBeCut for a model that fails with fewer rows than its batches have. If that is
    a fault of the program's, the whole batch fails of it, too."""
    try:
        yield
    except (OutOfMemory, batch.CannotBeCut):
        raise
    except Exception as error:
        if oom.is_oom(str(error)):
            raise
        why = str(error).strip().partition("\n")[0][:200]
        raise batch.CannotBeCut(
            f"{type(model).__name__} does not compute fewer rows than its batches have ({why})"
        ) from error


def _of_memory(function: Callable[..., Any], *args: Any) -> Any:
    """Call it; what it raises for want of memory comes as OutOfMemory."""
    import tensorflow as tf

    try:
        return function(*args)
    except tf.errors.OpError as error:
        if not oom.is_oom(str(error)):
            raise
        raise OutOfMemory(error) from error


def _joined(outputs: list[Any]) -> Any:
    """Outputs of one batch after the other, as one."""
    from keras.src import tree
    from keras.src.backend.tensorflow.trainer import concat

    if len(outputs) == 1:
        return outputs[0]
    return tree.map_structure(lambda *parts: concat(list(parts)), *outputs)


def _say_too_large(error: Exception) -> None:
    """Say by how much one row does not fit."""
    limit, size = memory.limit(), oom.asked(str(error))
    if limit is None:
        return
    peak = memory.peak()
    lacks = max(peak + size - limit, 1)
    say(
        f"a micro-batch of 1 does not fit in {limit // _MIB} MiB: {peak // _MIB} MiB were in use, "
        f"and it lacks at least {-(-lacks // _MIB)} MiB more; try a larger --memory"
    )


def _without_optionals(data: Any) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )


def _signature(model: Any) -> str:
    return f"{type(model).__name__}/{model.name.rstrip('_0123456789')}"


def _bytes_of(model: Any) -> int:
    import tensorflow as tf

    weights = model.trainable_weights
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in weights)


def _spec(iterator: Any) -> Any:
    """What is known of all batches of a data set: Keras shows no more to a model. None if that is
    not a data set."""
    import tensorflow as tf

    spec = getattr(iterator, "element_spec", None)
    if any(isinstance(one, tf.OptionalSpec) for one in tf.nest.flatten(spec)):
        return None
    return spec


def _value(variable: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(getattr(variable, "value", variable))


def _remembered() -> Remembered:
    lease = current()
    return Remembered("" if lease is None else lease.found)
