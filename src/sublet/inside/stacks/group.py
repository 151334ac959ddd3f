"""Several trainers that take the same batches: stacks that are as large as memory allows, or models
one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from .. import oom
from ..current_lease import say
from .alone import Alone
from .batches import Batches, Chunk
from .epochs import Epochs
from .stack import Stack
from .trainer import Logs

Member = Stack | Alone


class Group(Epochs):
    """A Trainer of all models of its members. A stack that runs out of memory goes on as two: no
    step is lost, and none is taken twice."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    @property
    def models(self) -> Sequence[Any]:
        return tuple(model for member in self.members for model in member.models)

    def begin(self) -> None:
        for member in self.members:
            member.begin()

    def train(self, chunk: Chunk) -> None:
        for member in tuple(self.members):
            self._take(member, chunk, True)

    def test(self, chunk: Chunk) -> None:
        for member in tuple(self.members):
            self._take(member, chunk, False)

    def logs(self) -> list[Logs]:
        return [logs for member in self.members for logs in member.logs()]

    def keep(self, places: Sequence[int]) -> None:
        """As those of a Trainer; the order of models in different members stays."""
        begin, kept = 0, []
        for member in self.members:
            count = len(member.models)
            inside = [place - begin for place in places if begin <= place < begin + count]
            if inside:
                member.keep(inside)
                kept.append(member)
            else:
                member.write_back()
            begin += count
        self.members = kept

    def copy(self, source: int, target: int) -> None:
        giver, given = self._find(source)
        taker, taken = self._find(target)
        taker.restore(taken, giver.snapshot(given))

    def numbers(self, place: int) -> dict[str, float]:
        member, inside = self._find(place)
        return member.numbers(inside)

    def set(self, place: int, name: str, value: float) -> None:
        member, inside = self._find(place)
        member.set(inside, name, value)

    def write_back(self) -> None:
        for member in self.members:
            member.write_back()

    def _find(self, place: int) -> tuple[Member, int]:
        """The member that has this model, and the model's place there."""
        for member in self.members:
            if place < len(member.models):
                return member, place
            place -= len(member.models)
        raise IndexError("no such model")

    def _take(self, member: Member, chunk: Chunk, training: bool) -> None:
        try:
            (member.train if training else member.test)(chunk)
            return
        except tf.errors.OpError as error:
            if not oom.is_oom(str(error)) or len(member.models) < 2 or isinstance(member, Alone):
                raise
        rest, halves = chunk.after(member.done), member.halves()
        say(
            f"a stack of {len(member.models)} models does not fit in memory: it goes on as "
            f"{' and '.join(str(len(half.models)) for half in halves)}"
        )
        place = self.members.index(member)
        self.members[place : place + 1] = halves
        del member  # Its memory is for the halves.
        for half in halves:
            self._take(half, rest, training)


def serial(models: Sequence[Any]) -> Group:
    """The models one after the other, batch by batch."""
    return Group([Alone(model, order) for order, model in enumerate(models)])


def stacks(models: Sequence[Any], batches: Batches, most: int | None = None) -> Group:
    """The models in stacks of `most` at the most, all about equal. Raises CannotStack."""
    count = -(-len(models) // (most or len(models)))
    return Group([Stack(part, batches, orders) for part, orders in parts(models, count)])


def parts(models: Sequence[Any], count: int) -> Iterator[tuple[Sequence[Any], range]]:
    """The models in so many parts of about the same size, with their places."""
    edges = [len(models) * place // count for place in range(count + 1)]
    for begin, end in itertools.pairwise(edges):
        yield models[begin:end], range(begin, end)
