"""One call of `fit` whose progress is kept in a directory.

It is saved at the end of each epoch, after so many steps if that was asked for, when the training
has ended, and when the program is to end (SIGTERM): then it exits with 42, which asks the queue to
start it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ...current_lease import say
from ..first_iterator import drawn_seed, first_iterator
from ..refused import Refused
from ..replicas import Replicas
from ..steps import LossStep
from . import generators, variables
from .directory import Checkpoint, Directory
from .observed import Observed
from .position import Batches, Step, batches_of
from .termination import Termination
from .values import Packer, unpack

REQUEUE_CODE = 42
_LOGS = "_get_metrics_result_or_logs"
"""What Keras asks a model for at the end of an epoch."""


class NothingLeft(Exception):
    """The training was done before."""


class ResumableRun:
    """The training of one model, from wherever it stands to its end."""

    def __init__(
        self,
        model: Any,
        directory: str,
        every: int | None = None,
        settings: dict[str, Any] | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._leads = replicas is None or replicas.leads
        self._directory = Directory(directory, reads=not self._leads)
        self._every = every
        self._settings = settings or {}
        self._termination = Termination()
        self._found: Checkpoint | None = None
        """What the training begins with, until it has begun."""
        self._batches: Batches
        self._tried = False
        """Whether the position in the data is known to be one that can be saved."""
        self._observed: Observed
        self._epochs = 1
        self._epoch = self._step = 0
        """Which step is next."""
        self._logs: Any = {}
        """What the steps of this epoch have shown."""
        self._before_validation: tuple[dict[str, Any], dict[int, Any]] | None = None
        """Random numbers of the program and of layers, which validation may use."""

    def fit(self, *args: Any, **options: Any) -> Any:
        """Train, or go on with it; takes and returns what `fit` of the model does."""
        asked = inspect.signature(self._model.fit).bind(*args, **options).arguments
        callbacks = _callbacks(asked.get("callbacks"))
        self._epochs, self._epoch = asked.get("epochs", 1), asked.get("initial_epoch", 0)
        observer = _observer(self, callbacks)
        asked["callbacks"] = [*callbacks, observer]
        with self._directory, self._termination:
            self._found = self._directory.latest()
            if self._found is not None:
                self._epoch = self._found.fields["epoch"]
                stopped = self._found.fields["stopped"]
                asked["initial_epoch"] = max(self._epoch, self._epochs if stopped else 0)
                _append(callbacks)
            try:
                with first_iterator(self._prepare):
                    self._model.fit(**asked)
            except NothingLeft:
                observer.set_model(self._model)
                observer.on_train_begin()
            else:
                self._save(finished=True)
            finally:
                vars(self._model).pop(_LOGS, None)
            if self._termination.asked:
                self._exit()
        return _history(observer)

    def _prepare(self, make: Callable[..., Any], options: dict[str, Any]) -> Any:
        """The batches, and a model whose variables are there. Raises Refused if they are not those
        of the checkpoint: until now nothing has changed."""
        self._batches = batches_of(make, options, self._seed)
        self._build()
        if self._found is not None:
            self._compare(self._found)
            self._tell(self._found)
        return self._batches.iterator

    def _seed(self) -> int:
        if self._found is not None:
            return int(self._found.fields.get("seed", 0))
        return drawn_seed(self._replicas)

    def _build(self) -> None:
        """Make all variables now, if that is possible without computing anything."""
        import tensorflow as tf

        def known(spec: Any) -> Any:
            return None if isinstance(spec, tf.OptionalSpec) else spec

        spec = tf.nest.map_structure(known, self._batches.spec())
        try:
            with self._model.distribute_strategy.scope():
                self._model._symbolic_build(data_batch=spec)
        except Exception as wrong:
            if self._found is not None:
                name = type(self._model).__name__
                raise Refused(
                    f"{name} cannot be built before it has seen data ({wrong}).",
                    "Call it with one batch before it is trained.",
                ) from None

    def _compare(self, found: Checkpoint) -> None:
        shown = self._directory.shown
        differs = variables.difference(found.fields["variables"], self._model)
        if differs:
            raise Refused(
                f"{shown} has a checkpoint of another model: {differs}.",
                "Name another directory, or delete it to begin anew.",
            )
        then, now = found.fields["data"], self._described()
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                raise Refused(
                    f"{shown} has a checkpoint of a training on other data: {name} was "
                    f"{then.get(name)}, and is {now.get(name)}.",
                    "Go on with the same, or name another directory.",
                )

    def _described(self) -> dict[str, Any]:
        """What has to be the same when the training is resumed."""
        return {**self._batches.described(), **self._settings}

    def _tell(self, found: Checkpoint) -> None:
        """Say where the training goes on, if it does."""
        fields, shown = found.fields, self._directory.shown
        if fields["finished"] and (fields["stopped"] or fields["epoch"] >= self._epochs):
            self._say(
                f"{shown} has all {fields['epoch']} epochs of this training: nothing is left to do"
            )
            raise NothingLeft
        step = f", step {fields['step']}" if fields["step"] else ""
        self._say(f"going on from {shown}: epoch {fields['epoch'] + 1}{step}")

    def began(self, callbacks: list[Any]) -> None:
        """All callbacks have heard that the training begins."""
        self._observed = Observed(callbacks)
        self._batches.iterator._enumerate_iterator = self.steps
        if self._found is not None:
            self._restore(self._found)

    def epoch_began(self, epoch: int) -> None:
        """All callbacks have heard that an epoch begins."""
        if self._ends():
            self._exit()
        self._epoch, self._step, self._logs = epoch, 0, {}

    def steps(self) -> Iterator[Step]:
        """The steps of the epoch that are left, and what is to be done between them."""
        found, self._found = self._found, None
        if found is not None and found.fields["step"]:
            self._step = found.fields["step"]
            self._restore(found)  # Metrics were reset, and callbacks told that an epoch begins.
            self._return_logs(found.fields["logs"])
        for one in self._batches.epoch(self._epoch, self._step, found):
            if not self._tried:
                self._tried = True
                self._batches.files(self._directory)  # What cannot be saved is refused now.
            self._tell_replicas()
            yield one
            self._step = one[1] + 1
            if self._ends():
                self._save()
                self._exit()
            if self._every and self._step // self._every > one[0] // self._every:
                self._save()

    def stepped(self, logs: Any) -> None:
        """A step has shown this."""
        self._logs = logs

    def validates(self) -> None:
        """The epoch has no more steps, and validation begins, which resets metrics."""
        self._logs = self._shown()
        self._before_validation = generators.states(), variables.seeds(self._model)

    def validated(self) -> None:
        """A step of the validation is done: it begins anew when the training goes on."""
        if self._ends():
            self._save()
            self._exit()
        self._tell_replicas()

    def _ends(self) -> bool:
        """Whether the program is to end now: with several processes, when all know it."""
        return self._termination.asked if self._replicas is None else self._replicas.stopped

    def _tell_replicas(self) -> None:
        if self._replicas is not None:
            self._replicas.stop = self._termination.asked

    def epoch_ended(self, epoch: int) -> None:
        """All callbacks have heard that an epoch has ended."""
        self._epoch, self._step, self._logs = epoch + 1, 0, {}
        self._before_validation = None
        self._save()

    def _shown(self) -> dict[str, Any]:
        """What Keras shows for the steps of the epoch so far."""
        from keras.src.utils.python_utils import pythonify_logs

        if self._before_validation is None and self._logs:
            return dict(pythonify_logs(self._model._get_metrics_result_or_logs(self._logs)))
        return dict(self._logs)

    def _save(self, finished: bool = False) -> None:
        """Save all; if that fails, the training goes on, and the checkpoint before stays."""
        if not self._leads:
            return
        random, seeds = self._before_validation or (generators.states(), {})
        micro = self._micro_batches()
        packer = Packer()
        packer.arrays += variables.values(self._model, seeds)
        try:
            fields = {
                "epoch": self._epoch,
                "step": self._step,
                "finished": finished,
                "stopped": bool(self._model.stop_training),
                "logs": packer.pack(self._shown()),
                "variables": variables.described(self._model),
                "data": self._described(),
                "random": packer.pack(random),
                "callbacks": self._observed.packed(packer),
                "micro_batches": [] if micro is None else micro.choices(),
                **self._batches.fields(),
            }
            self._directory.save(fields, packer.arrays, self._batches.files(self._directory))
        except (OSError, Refused) as wrong:
            say(f"no checkpoint was written to {self._directory.shown}: {wrong}")

    def _restore(self, found: Checkpoint) -> None:
        """Have everything be as it was; where in its data the training stands is seen to when it
        begins with a step."""
        variables.put_back(found, self._model)
        generators.put_back(unpack(found.fields["random"], found.array))
        self._observed.put_back(found.fields["callbacks"], found.array)
        micro = self._micro_batches()
        if micro is not None:
            micro.choose(found.fields["micro_batches"])

    def _micro_batches(self) -> LossStep | None:
        step = getattr(self._model.train_function, "__self__", None)
        return step if isinstance(step, LossStep) else None

    def _return_logs(self, logs: Any) -> None:
        """If the epoch has no more steps, Keras shall show what they have shown before."""
        shown = unpack(logs, lambda _: None)
        own = self._model._get_metrics_result_or_logs

        def show(logs: Any) -> Any:
            vars(self._model).pop(_LOGS, None)
            return own(logs) if logs else shown

        vars(self._model)[_LOGS] = show

    def _exit(self) -> None:
        if self._replicas is not None:
            self._replicas.agreed([0])  # The others wait until the first has saved it.
        shown = self._directory.shown
        self._say(f"SIGTERM: the training is saved in {shown}, exit code {REQUEUE_CODE}")
        raise SystemExit(REQUEUE_CODE)

    def _say(self, line: str) -> None:
        if self._leads:
            say(line)


def _callbacks(given: Any) -> list[Any]:
    """The callbacks that `fit` was given, as a list."""
    import keras
    from keras.src import tree

    if isinstance(given, keras.callbacks.CallbackList):
        raise Refused("A CallbackList cannot be resumed.", "Give the callbacks as a list.")
    callbacks = list(tree.flatten(given)) if given else []
    if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks):
        raise Refused(
            "BackupAndRestore and `checkpoint` both decide where a training begins.",
            "Leave one of them out.",
        )
    return callbacks


def _append(callbacks: list[Any]) -> None:
    """Have logs be continued, not begun anew."""
    import keras

    for one in callbacks:
        if isinstance(one, keras.callbacks.CSVLogger):
            one.append = True


def _observer(run: ResumableRun, callbacks: list[Any]) -> Any:
    """The last of the callbacks, but for the bar: the History of the training, too."""
    import keras

    class History(keras.callbacks.History):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            super().on_train_begin(logs)
            run.began([*callbacks, self])

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            run.epoch_began(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            run.stepped(logs)

        def on_test_begin(self, logs: Any = None) -> None:
            run.validates()

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            run.validated()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            run.epoch_ended(epoch)

    return History()


def _history(observer: Any) -> Any:
    """What the observer has heard, as Keras returns it."""
    import keras

    history = keras.callbacks.History()
    history.set_model(observer.model)
    history.set_params(observer.params)
    history.history, history.epoch = observer.history, observer.epoch
    observer.model.history = history
    return history
