"""Several members that take the same batches: stacks that are as large as memory allows, or models
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
from .stack import Stack
from .trainer import Logs

Member = Stack | Alone


class Group:
    """A Trainer of all models of its members. A stack that runs out of memory goes on as two: no
    step is lost, and none is taken twice."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    @property
    def models(self) -> Sequence[Any]:
        return tuple(model for member in self.members for model in member.models)

    def train_epoch(self, batches: Batches) -> list[Logs]:
        return self._epoch(batches, True)

    def evaluate(self, batches: Batches) -> list[Logs]:
        return self._epoch(batches, False)

    def train(self, chunk: Chunk) -> None:
        """Take the steps of a chunk."""
        self._all(chunk, True)

    def keep(self, places: Sequence[int]) -> None:
        begin, kept = 0, []
        for member in self.members:
            count = len(member.models)
            inside = [place - begin for place in places if begin <= place < begin + count]
            if inside:
                member.keep(inside)
                kept.append(member)
            else:
                member.write_back(False)
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

    def write_back(self, whole: bool = True) -> None:
        for member in self.members:
            member.write_back(whole)

    def _epoch(self, batches: Batches, training: bool) -> list[Logs]:
        for member in self.members:
            member.begin()
        for chunk in batches.epoch():
            self._all(chunk, training)
        return [logs for member in self.members for logs in member.logs()]

    def _all(self, chunk: Chunk, training: bool) -> None:
        begin = 0
        for member in tuple(self.members):
            end = begin + len(member.models)
            self._take(member, chunk.of(begin, end), training)
            begin = end

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
        begin = 0
        for half in halves:
            end = begin + len(half.models)
            self._take(half, rest.of(begin, end), training)
            begin = end


def serial(models: Sequence[Any]) -> Group:
    """The models one after the other, batch by batch."""
    return Group([Alone(model) for model in models])


def stacks(models: Sequence[Any], chunk: Chunk, most: int | None = None) -> Group:
    """The models in stacks of `most` at the most, all about equal; `chunk` is one such as they will
    get. Raises CannotStack."""
    count = -(-len(models) // (most or len(models)))
    return Group([Stack(models[a:b], chunk.of(a, b)) for a, b in parts(len(models), count)])


def parts(models: int, count: int) -> Iterator[tuple[int, int]]:
    """Where each of so many parts of about the same size begins and ends."""
    return itertools.pairwise(models * place // count for place in range(count + 1))
