"""The state that Keras keeps for each thread: what a call inherits, and `clear_session` within it.

Without it, a dtype policy set in an initializer would hold in the main thread alone. A call sees
what was set before it, and what it sets itself ends with it.
"""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

from . import call_context
from .build_patches import replace_everywhere

_NOT_INHERITED = ("global_seed_generator",)
"""A generator is one object: a call makes its own, from the inherited seed."""


class ThreadState:
    """The state of the thread that creates it, to be applied to another thread."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {}
        self._eager: bool | None = None
        tracker = _tracker()
        if tracker is not None:
            self._state = {
                name: _copy(value)
                for name, value in vars(tracker).items()
                if name not in _NOT_INHERITED
            }
        context = _context()
        if context is not None:
            self._eager = context.executing_eagerly()

    def apply(self) -> None:
        """Give the calling thread this state."""
        tracker, context = _tracker(), _context()
        if tracker is not None:
            vars(tracker).update({name: _copy(value) for name, value in self._state.items()})
        if context is not None and self._eager is not None:
            context.context()._thread_local_data.is_eager = self._eager


def _copy(value: Any) -> Any:
    """Copy name counters and scopes, which are changed in place; their contents are not."""
    return value.copy() if isinstance(value, (dict, list, set)) else value


def _tracker() -> Any:
    # Looked up each time: outside of calls, `clear_session` makes a new one.
    module = sys.modules.get("keras.src.backend.common.global_state")
    return getattr(module, "GLOBAL_STATE_TRACKER", None)


def _context() -> Any:
    return sys.modules.get("tensorflow.python.eager.context")


def patch_keras() -> None:
    """Have `clear_session` in a call clear that thread's state only. `keras` must be imported."""
    from keras.src.backend.common import global_state

    clear = global_state.clear_session

    @functools.wraps(clear)
    def clear_session(free_memory: bool = True) -> None:
        if call_context.current() is None:
            clear(free_memory)
            return
        vars(global_state.GLOBAL_STATE_TRACKER).clear()
        vars(global_state.GLOBAL_SETTINGS_TRACKER).clear()
        _reset_default_graph()
        if free_memory:
            gc.collect()

    replace_everywhere(clear, "clear_session", clear_session)


def patch_tf_keras() -> None:
    """As `patch_keras`, for Keras 2: it counts names by graph, so a call only needs a new graph."""
    from tf_keras.src import backend

    clear = backend.clear_session

    @functools.wraps(clear)
    def clear_session() -> None:
        if call_context.current() is None:
            clear()
            return
        backend._GRAPH.graph = None
        _reset_default_graph()
        if backend._SESSION.session is not None:
            backend._SESSION.session.close()
            backend._SESSION.session = None

    replace_everywhere(clear, "clear_session", clear_session)


def _reset_default_graph() -> None:
    from tensorflow.python.framework import ops

    # The stack is this thread's own.
    if ops._default_graph_stack.is_cleared():
        ops.reset_default_graph()
