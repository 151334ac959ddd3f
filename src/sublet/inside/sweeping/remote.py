"""Trials that train in a worker of a pool: what it is asked, what it does, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..training.refused import Refused
from .building import Builder, said
from .data import Data
from .local import Local
from .probe import Timing, most_in_lease, timed_in_worker
from .state import Kept, State
from .ways import fused, serial


@dataclass(frozen=True)
class TrialOrder:
    """A trial, and from where it goes on."""

    number: int
    params: dict[str, Any]
    kept: Kept | None = None


@dataclass(frozen=True)
class Order:
    """What a worker trains, one after the other or, if `fused`, as one."""

    builder: Builder
    data: Data
    trials: tuple[TrialOrder, ...]
    until: int
    epochs: int
    callbacks: Any = None
    fused: bool = False


@dataclass
class Answer:
    """How the training of a trial went."""

    number: int
    logs: list[dict[str, float]] = field(default_factory=list)
    """Of each epoch that was trained."""
    kept: Kept | None = None
    """To go on with; None at the end."""
    weights: State | None = None
    """At the end."""
    stopped: bool = False
    best_epoch: int | None = None
    error: str = ""
    refused: tuple[str, str] | None = None
    """What is wrong with the request, and what to do next."""


def measure(order: Order, ordered: float) -> Timing:
    """Take some steps of the first trial, which are forgotten; called in several workers at once,
    at the time `ordered`."""
    local = Local(order.builder, order.data, order.epochs, None)
    trial = order.trials[0]
    model = local.build(trial, None)
    chunk = next(iter(local.batches([trial.number]).epoch()))
    return timed_in_worker(model, chunk, ordered)


def perform(order: Order) -> list[Answer]:
    """Train what is ordered; called in a worker."""
    local = Local(order.builder, order.data, order.epochs, order.callbacks)
    answers = {one.number: Answer(one.number) for one in order.trials}
    for one in order.trials:
        try:
            local.build(one, one.kept)
        except Refused as why:
            answers[one.number].refused = why.message, why.hint
            return list(answers.values())
        except Exception as error:  # The builder's own.
            answers[one.number].error = said(error)
    numbers = [number for number, answer in answers.items() if not answer.error]
    if order.fused and numbers:
        chunk = local.batches(numbers).start()
        local.join(numbers, fused(most_in_lease(local.built(numbers[0]), chunk)))
    else:
        for number in numbers:
            local.join([number], serial)

    def report(number: int, epoch: int, logs: dict[str, float]) -> None:
        answers[number].logs.append(logs)

    def failed(number: int, why: str) -> None:
        answers[number].error = why

    for _ in local.train(numbers, order.until, report, failed):
        pass
    well = [number for number, answer in answers.items() if not answer.error]
    done = [one for one in well if order.until >= order.epochs or local.stopped(one)]
    local.leave(done)
    for number in well:
        answer = answers[number]
        if number in done:
            answer.stopped = local.stopped(number)
            answer.best_epoch = local.best_epoch(number)
            answer.weights = local.weights(number)
        else:
            answer.kept = Kept(order.until, local.state(number))
    return list(answers.values())
