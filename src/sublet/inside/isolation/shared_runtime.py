"""Lets several calls share one runtime: installs the patches, and prepares the thread of a call.

Each patch is applied as soon as the package is imported. Never imports TensorFlow itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..current_lease import say
from ..hook import when_imported
from ..warm_start import preloaded
from . import build_patches, call_context, rng, tf1_sessions, thread_state

_installed = False


def install() -> None:
    """Let calls share this process from now on. Cannot be undone."""
    global _installed
    if _installed:
        return
    _installed = True
    preloaded.give_back_all()
    call_context.patch_threads()
    rng.patch_python()
    for package, patch in (
        ("numpy.random", rng.patch_numpy),
        ("tensorflow", build_patches.patch_tensorflow),
        ("tensorflow", rng.patch_tensorflow),
        ("tensorflow", tf1_sessions.patch_tensorflow),
        ("keras", build_patches.patch_keras),
        ("keras", thread_state.patch_keras),
        ("tf_keras", build_patches.patch_tf_keras),
        ("tf_keras", thread_state.patch_tf_keras),
    ):
        when_imported(package, _reporting(package, patch))


def _reporting(package: str, patch: Callable[[], None]) -> Callable[[], None]:
    def act() -> None:
        try:
            patch()
        except Exception as wrong:
            say(f"calls cannot be kept apart in this {package}: {wrong!r}")

    return act


@contextlib.contextmanager
def isolated(call: call_context.CallContext, inherited: thread_state.ThreadState) -> Iterator[None]:
    """Run the body as this call. The thread must be new, and end with the call."""
    with call_context.working_for(call):
        try:
            inherited.apply()
            with tf1_sessions.own_session() if call.graph_mode else contextlib.nullcontext():
                yield
        finally:
            call.end()
