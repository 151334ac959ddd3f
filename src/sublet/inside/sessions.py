"""TensorFlow 1 in a thread: a graph and a session for each call.

Owns making and dropping them, and refusing two calls that change one graph at the same time: a
graph's seeds and names depend on the order in which it is built. Any number of sessions may *run*
one graph.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

from . import errand


@contextlib.contextmanager
def own_session() -> Iterator[None]:
    """Let this thread build graphs: its default graph is a new one, its default session runs it.

    The graph is the thread's default, not an entered one: `reset_default_graph`, with which many
    a program of TensorFlow 1 starts, refuses to work within an entered one. The thread must be
    new, and must end with the call: what else a program leaves open is the thread's own.
    """
    import tensorflow  # noqa: F401  (the patches on it are applied when it is imported)
    from tensorflow.python.client import session as sessions
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    context.context()._thread_local_data.is_eager = False
    ops._default_graph_stack.reset()
    session = sessions.Session()
    default = session.as_default()
    # A program may open sessions and never close them: it is not asked to unwind them in order.
    default.enforce_nesting = False
    with default:
        try:
            yield
        finally:
            session.close()
            ops._default_graph_stack.reset()


def share_tensorflow() -> None:
    """Refuse two calls that change one graph. Needs `tensorflow` to be imported."""
    from tensorflow.python.framework import ops

    check = ops.Graph._check_not_finalized
    owners: weakref.WeakKeyDictionary[Any, errand.Errand] = weakref.WeakKeyDictionary()

    @functools.wraps(check)
    def check_not_finalized(self: Any) -> None:
        check(self)
        call = errand.current()
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
