"""Trains a sweep's trials that are Keras models: in this process, fused or one after the other, or
in leased workers. Itself it loads no TensorFlow; `inside.sweeping` does."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from sublet.client.training import inside_package
from sublet.errors import BadRequest
from sublet.sweeps.driver import Reports
from sublet.sweeps.packed import Packed
from sublet.sweeps.records import Logs, Sweep, Trial, is_number
from sublet.sweeps.result import Difference
from sublet.sweeps.saved import Saved
from sublet.sweeps.search.rung import Copy

Way = Literal["auto", "fused", "packed", "serial"]
_VERIFIED = 8
"""How many trials are trained again, to see that they end the same."""
WAYS = ("auto", "fused", "packed", "serial")


class Inside:
    """The modules of `inside.sweeping`, and its refusals as ours."""

    def __init__(self) -> None:
        package = f"{inside_package()}.sweeping"
        try:
            self.building = importlib.import_module(f"{package}.building")
            self.data = importlib.import_module(f"{package}.data")
            self.local = importlib.import_module(f"{package}.local")
            self.remote = importlib.import_module(f"{package}.remote")
            self.groups = importlib.import_module(f"{package}.groups")
            self.summaries = importlib.import_module(f"{package}.summaries")
        except ImportError as wrong:
            raise BadRequest(
                f"sublet.sweep needs Keras 3 with TensorFlow: {wrong}.",
                "Install them: pip install tensorflow.",
            ) from None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it; what it refuses is a BadRequest."""
        try:
            return function(*arguments)
        except self.building.Refused as why:
            raise BadRequest(why.message, why.hint) from None


class Models:
    """The runner of a sweep over models."""

    def __init__(
        self,
        inside: Inside,
        builder: Any,
        data: Any,
        *,
        metric: str,
        epochs: int,
        callbacks: Any,
        way: Way,
        memory: str | None,
        on: str,
        saved: Saved | None,
        summaries: Callable[[int, int, dict[str, float]], None] | None,
    ) -> None:
        self._inside = inside
        self._data = data
        self._metric, self._epochs, self._way = metric, epochs, way
        self._saved = saved
        self._summaries = summaries
        self._local = inside.local.Local(builder, data, epochs, callbacks)
        self._here: set[int] = set()
        """The trials that train in this process."""
        self._fused: set[int] = set()
        """Those that train as one with others, here or in a worker."""
        self._packed = Packed(inside.remote, builder, data, epochs, callbacks, memory or "auto", on)
        self.weights: dict[int, Any] = {}
        """Of trials that have ended."""
        self._model: tuple[int, Any] | None = None
        """The model of the best trial so far, if it was trained here."""
        self._checked = False

    # What the driver calls.

    def train(self, trials: Sequence[Trial], until: int, reports: Reports) -> None:
        self._place([trial for trial in trials if self._is_new(trial)], reports)
        left = [one for one in trials if not reports.sweep.trials[one.number].over]
        here = [trial.number for trial in left if trial.number in self._here]
        self._packed.start([trial for trial in left if trial.number not in self._here], until)
        failures: dict[int, str] = {}

        def report(number: int, epoch: int, logs: dict[str, float]) -> None:
            self._note(number, epoch, [logs], reports)

        try:
            for ended in self._local.train(here, until, report, failures.__setitem__):
                self._ended_here(ended, failures, until, reports)
            for answer, begun in self._packed.answers():
                self._ended_there(answer, begun, until, reports)
        except BaseException:
            self._packed.terminate()
            raise

    def copy(self, copy: Copy) -> None:
        source, target = copy.source, copy.target
        if source in self._here and target in self._here:
            self._inside.call(self._local.copy, source, target, copy.params)
        elif source in self._packed.kept:
            self._packed.kept[target] = self._packed.kept[source]._replace(copied=True)
        elif target in self._here:
            # An earlier run has trained the source: what it has left is read when this is built.
            self._local.leave([target])
            self._local.drop(target)
            self._here.discard(target)
        if self._saved is not None:
            self._saved.copy_state(source, target)

    def prune(self, trials: Sequence[int]) -> None:
        self._local.leave(trials)
        for number in trials:
            self._packed.kept.pop(number, None)
            if number in self._here:
                self.weights[number] = self._local.weights(number)
                self._local.drop(number)
        if self._saved is not None:
            self._saved.drop_states(trials)

    def rung_ended(self, sweep: Sweep) -> None:
        best = sweep.best
        if self._model is not None and (best is None or best.number != self._model[0]):
            self._model = None
        if self._saved is None:
            return
        if best is not None and best.state == "done" and best.number in self.weights:
            self._saved.put_best(best.number, self.weights[best.number])

    def close(self) -> None:
        """End the workers."""
        self._packed.close()

    # What the result asks for.

    def model(self, trial: Trial) -> Any:
        """A trial's model with its trained weights."""
        if self._model is not None and self._model[0] == trial.number:
            return self._model[1]
        weights = self.weights.get(trial.number)
        if weights is None and self._saved is not None:
            weights = self._saved.best(trial.number)
        if weights is None:
            raise BadRequest(
                f"The weights of trial {trial.number} were not kept: it failed, or an earlier run "
                "of this sweep trained it.",
                "Only those of the best trial outlive the process. Train it again: "
                "build_model(**trial.params).",
            )
        model = self._inside.call(self._local.model, trial.params)
        model.set_weights(weights)
        return model

    def verify(self, sweep: Sweep) -> dict[int, Difference]:
        """Train some of the fused trials by themselves; how far they are from that."""
        fused = [
            trial
            for trial in sweep.trials
            if trial.number in self._fused and trial.state == "done" and is_number(trial.value)
        ]
        step = -(-len(fused) // _VERIFIED) or 1
        return {
            trial.number: Difference(
                *self._inside.call(
                    self._inside.groups.compare, self._local, trial, self.model(trial)
                )
            )
            for trial in fused[::step]
        }

    # Inside.

    def _is_new(self, trial: Trial) -> bool:
        return trial.number not in self._here and trial.number not in self._packed.kept

    def _place(self, trials: Sequence[Trial], reports: Reports) -> None:
        """Decide how new trials are trained, and build those that train here."""
        if not trials:
            return
        if (self._way == "packed" or self._packed.nodes) and not self._packed.sendable:
            raise BadRequest(
                "Data (a tf.data.Dataset), builder or callbacks cannot be sent to workers, so "
                "trials cannot be packed.",
                'Give what can be pickled, or way="serial" without on="ray".',
            )
        if self._way == "packed":
            self._pack(trials, "all", "packed", "it was asked for", reports)
            return
        if not self._checked:
            self._inside.call(self._local.check, trials[0].params, self._metric)
            self._checked = True
        groups: dict[Any, list[Trial]] = {}
        for trial in trials:
            try:
                model = self._inside.call(self._local.build, trial, self._kept(trial))
            except BadRequest:
                raise
            except Exception as error:  # The builder's own.
                reports.ended(trial.number, "failed", error=self._inside.building.said(error))
            else:
                groups.setdefault(self._inside.groups.key(model), []).append(trial)
        chosen = [(members, self._chosen(members)) for members in groups.values()]
        fused = [choice for _, choice in chosen if choice.way == "fused"]
        apart = self._packed.sendable and self._inside.groups.apart(fused, self._packed.count)
        names = self._inside.groups.Names()
        for members, choice in chosen:
            self._put(members, choice, apart, names, reports)

    def _chosen(self, trials: Sequence[Trial]) -> Any:
        """The way for trials of one architecture."""
        pack = (lambda: self._packed.measure(trials)) if self._packed.sendable else None
        numbers = [trial.number for trial in trials]
        return self._inside.call(self._inside.groups.choose, self._local, numbers, self._way, pack)

    def _put(
        self, trials: Sequence[Trial], choice: Any, apart: bool, names: Any, reports: Reports
    ) -> None:
        """Have these trained in the way that was chosen, once `train` goes on; with `apart`, those
        that are one train in a worker."""
        numbers = [trial.number for trial in trials]
        name, why = names.of(self._local.built(numbers[0])), choice.why
        if choice.way == "fused":
            self._fused |= set(numbers)
        if choice.way == "packed" or self._packed.nodes or (choice.way == "fused" and apart):
            for number in numbers:
                self._local.drop(number)
            if choice.way == "fused":
                self._packed.join(numbers)
                why += "; on the nodes" if self._packed.nodes else "; beside other architectures"
            way = "fused" if choice.way == "fused" else "packed"
            self._pack(trials, name, way, why, reports)
            return
        self._here |= set(numbers)
        for part in choice.parts:
            self._local.join(part, choice.make, choice.trainer)
        reports.way(name, choice.way, len(trials), why)

    def _pack(
        self, trials: Sequence[Trial], name: str, way: str, why: str, reports: Reports
    ) -> None:
        for trial in trials:
            if (kept := self._kept(trial)) is not None:
                self._packed.kept[trial.number] = kept
        reports.way(name, way, len(trials), why)

    def _kept(self, trial: Trial) -> Any:
        """The state in which an earlier run has left a trial; None if it begins."""
        found = None if self._saved is None else self._saved.state(trial.number)
        # A trial that was left without a word of its epochs begins again.
        if found is None or found[0] > trial.epochs:
            return None
        return self._inside.remote.Kept(*found)

    def _note(
        self, number: int, epoch: int, logs: Sequence[dict[str, float]], reports: Reports
    ) -> None:
        for one in logs:
            if self._metric not in one:
                building, validated = self._inside.building, self._data.has_validation
                raise BadRequest(*building.no_metric(self._metric, one, validated))
        reports.epochs(number, epoch, [_plain(one) for one in logs])
        if self._summaries is not None:
            for place, one in enumerate(logs):
                self._summaries(number, epoch + place, one)

    def _ended_here(
        self, numbers: Sequence[int], failures: dict[int, str], until: int, reports: Reports
    ) -> None:
        """These have come to the end of a rung, together."""
        well = [number for number in numbers if number not in failures]
        done = [one for one in well if until >= self._epochs or self._local.stopped(one)]
        self._local.leave(done)
        for number in numbers:
            if number in failures:
                self._local.drop(number)
                reports.ended(number, "failed", error=failures[number])
            elif number not in done:
                if self._saved is not None:
                    self._saved.put_state(number, until, self._local.state(number))
            else:
                self.weights[number] = self._local.weights(number)
                value = self._value_at(number, self._local.best_epoch(number), reports)
                model = self._local.drop(number)
                self._done(number, value, reports)
                best = reports.sweep.best
                if best is not None and best.number == number:
                    self._model = number, model

    def _ended_there(self, answer: Any, begun: int, until: int, reports: Reports) -> None:
        if answer.refused is not None:
            raise BadRequest(*answer.refused)
        if answer.logs:
            self._note(answer.number, begun + 1, answer.logs, reports)
        if answer.error:
            reports.ended(answer.number, "failed", error=answer.error)
        elif answer.stopped or until >= self._epochs:
            self.weights[answer.number] = answer.weights
            value = self._value_at(answer.number, answer.best_epoch, reports)
            self._done(answer.number, value, reports)
        elif self._saved is not None:
            self._saved.put_state(answer.number, until, answer.kept.state)

    def _done(self, number: int, value: float | None, reports: Reports) -> None:
        reports.ended(number, "done", value)
        if self._saved is not None:
            self._saved.drop_states([number])

    def _value_at(self, number: int, epoch: int | None, reports: Reports) -> float | None:
        """The metric at the epoch whose weights were put back; None for the last one."""
        if epoch is None:
            return None
        return reports.sweep.trials[number].curves[self._metric][epoch - 1]


def _plain(logs: dict[str, float]) -> Logs:
    return {name: float(value) for name, value in logs.items()}
