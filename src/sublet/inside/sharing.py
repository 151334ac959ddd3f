"""One runtime for several calls.

Owns putting the patches in place, each as soon as what it patches is imported, and the steps
around a call. Never imports TensorFlow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from . import building, carried, chance, errand, preloaded, sessions
from .hook import when_imported
from .lease import say

_installed = False


def install() -> None:
    """Let calls share this process. For good: there is no way back."""
    global _installed
    if _installed:
        return
    _installed = True
    preloaded.give_back_all()
    errand.hand_on()
    chance.share_python()
    for package, share in (
        ("numpy.random", chance.share_numpy),
        ("tensorflow", building.share_tensorflow),
        ("tensorflow", chance.share_tensorflow),
        ("tensorflow", sessions.share_tensorflow),
        ("keras", building.share_keras),
        ("keras", carried.share_keras),
        ("tf_keras", building.share_tf_keras),
        ("tf_keras", carried.share_tf_keras),
    ):
        when_imported(package, _careful(package, share))


def _careful(package: str, share: Callable[[], None]) -> Callable[[], None]:
    def act() -> None:
        try:
            share()
        except Exception as wrong:
            say(f"calls cannot be kept apart in this {package}: {wrong!r}")

    return act


@contextlib.contextmanager
def apart(call: errand.Errand, taken_over: carried.Carried) -> Iterator[None]:
    """Around a call, on a thread of its own."""
    with errand.working_for(call):
        try:
            taken_over.put_on()
            with sessions.own_session() if call.graph_mode else contextlib.nullcontext():
                yield
        finally:
            call.end()
