"""TensorFlow 1 in threads: a graph and a session for each call.

Refuses calls that change one graph at the same time, because a graph's seeds and names depend on
the order in which it is built. Any number of sessions may *run* one graph.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from ..current_lease import say
from . import call_context
from .build_patches import exclusive_first, replace_everywhere

_OPENED = "sessions"


@contextlib.contextmanager
def own_session() -> Iterator[None]:
    """Give this thread a new default graph and a default session for it.

    The graph is set as the default, not entered: `reset_default_graph`, with which many programs of
    TensorFlow 1 begin, fails within an entered graph. The thread must be new and end with the call,
    because whatever else a program leaves open belongs to the thread.
    """
    import tensorflow  # noqa: F401  (the patches on it are applied when it is imported)
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops, stack

    context.context()._thread_local_data.is_eager = False
    _begin()
    try:
        yield
    finally:
        call = call_context.current()
        assert call is not None
        for opened in reversed(call.state.get(_OPENED, ())):
            session = opened()
            if session is not None:
                with contextlib.suppress(Exception):
                    session.close()
        stack._default_session_stack.reset()
        ops._default_graph_stack.reset()


def _begin() -> None:
    from tensorflow.python.client import session as sessions
    from tensorflow.python.framework import ops, stack

    ops._default_graph_stack.reset()
    # Set, not entered: a program may leave sessions of its own open above it.
    stack._default_session_stack.stack[:1] = [sessions.Session()]


def patch_tensorflow() -> None:
    """Separate graphs, sessions and switches of calls. `tensorflow` must be imported."""
    _guard_graphs()
    _note_sessions()
    _patch_reset()
    _patch_switches()


def _patch_reset() -> None:
    """Make a new default session after `reset_default_graph`."""
    from tensorflow.python.framework import ops

    original = ops.reset_default_graph

    @functools.wraps(original)
    def reset_default_graph() -> None:
        original()
        call = call_context.current()
        if call is not None and call.graph_mode:
            _begin()

    replace_everywhere(original, "reset_default_graph", reset_default_graph)


def _patch_switches() -> None:
    """Limit the switches back to TensorFlow 1, which are meant for a whole process.

    Eager execution is switched off for the call alone. The other switches (shapes, variables,
    control flow, equality) take effect only where all calls are of TensorFlow 1.
    """
    from tensorflow.python.compat import v2_compat
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    eager_off, all_off = ops.disable_eager_execution, v2_compat.disable_v2_behavior

    @functools.wraps(eager_off)
    def disable_eager_execution() -> None:
        if call_context.current() is None:
            eager_off()
        else:
            context.context()._thread_local_data.is_eager = False

    @functools.wraps(all_off)
    def disable_v2_behavior() -> None:
        call = call_context.current()
        if call is None or call.graph_mode:
            all_off()
            return
        disable_eager_execution()
        say(
            f"disable_v2_behavior() in {call} switches eager execution off for this call and"
            " nothing else: for programs of TensorFlow 1 there is isolation='session'"
        )

    replace_everywhere(eager_off, "disable_eager_execution", disable_eager_execution)
    replace_everywhere(all_off, "disable_v2_behavior", disable_v2_behavior)


def _note_sessions() -> None:
    """Remember the sessions that each call opens, so that the rest can be closed."""
    from tensorflow.python.client import session as sessions

    original = exclusive_first(sessions.BaseSession.__init__)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        call = call_context.current()
        if call is not None:
            call.state.setdefault(_OPENED, []).append(weakref.ref(self))

    sessions.BaseSession.__init__ = init


def _guard_graphs() -> None:
    """Refuse two calls that change one graph."""
    from tensorflow.python.framework import ops

    check = ops.Graph._check_not_finalized
    owners: weakref.WeakKeyDictionary[Any, call_context.CallContext] = weakref.WeakKeyDictionary()

    @functools.wraps(check)
    def check_not_finalized(self: Any) -> None:
        check(self)
        call = call_context.current()
        if call is None or self.building_function:
            return
        owner = owners.setdefault(self, call)
        if owner is call:
            return
        if not owner.ended:
            raise RuntimeError(
                f"{call} changes a graph that {owner} is working on. A graph can be run by several"
                " calls but changed by one at a time: build it within each call, or build and"
                " finalize() it before the calls start"
            )
        owners[self] = call

    ops.Graph._check_not_finalized = check_not_finalized
