"""One runtime for several calls.

Owns putting the patches in place, each as soon as what it patches is imported, and the steps
around a call. Never imports TensorFlow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ...formats.lease import say
from ..hook import when_imported
from ..warm_start import preloaded
from . import build_patches, call_context, rng, tf1_sessions, thread_state

_installed = False


def install() -> None:
    """Let calls share this process. For good: there is no way back."""
    global _installed
    if _installed:
        return
    _installed = True
    preloaded.give_back_all()
    call_context.hand_on()
    rng.share_python()
    for package, share in (
        ("numpy.random", rng.share_numpy),
        ("tensorflow", build_patches.share_tensorflow),
        ("tensorflow", rng.share_tensorflow),
        ("tensorflow", tf1_sessions.share_tensorflow),
        ("keras", build_patches.share_keras),
        ("keras", thread_state.share_keras),
        ("tf_keras", build_patches.share_tf_keras),
        ("tf_keras", thread_state.share_tf_keras),
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
def apart(call: call_context.CallContext, taken_over: thread_state.ThreadState) -> Iterator[None]:
    """Around a call, on a thread of its own."""
    with call_context.working_for(call):
        try:
            taken_over.put_on()
            with tf1_sessions.own_session() if call.graph_mode else contextlib.nullcontext():
                yield
        finally:
            call.end()
