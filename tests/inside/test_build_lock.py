"""The build lock: one call at a time, and never a deadlock with a function's own lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sublet.inside.isolation import call_context
from sublet.inside.isolation.build_lock import BUILD_LOCK, BuildLock, FunctionLock
from sublet.inside.isolation.call_context import CallContext

LIMIT = 60


def in_thread(call: CallContext | None, work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        with call_context.working_for(call):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_call_holds_the_lock_again_and_in_all_its_threads() -> None:
    build_lock, call = BuildLock(), CallContext(1, "one")
    helped = threading.Event()

    def help_out() -> None:
        with build_lock:
            helped.set()

    with call_context.working_for(call), build_lock, build_lock:
        in_thread(call, help_out).join(LIMIT)
        assert build_lock.held()
    assert helped.is_set()
    assert not build_lock.held()


def test_another_call_waits_and_says_for_whom() -> None:
    build_lock, first, second = BuildLock(), CallContext(1, "one"), CallContext(2, "two")
    order: list[str] = []

    def build() -> None:
        with build_lock:
            order.append("second")

    with call_context.working_for(first), build_lock:
        thread = in_thread(second, build)
        while not second.waits_for:
            assert thread.is_alive()
        assert second.waits_for == "the build lock, which call 1 (one) holds"
        order.append("first")
    thread.join(LIMIT)
    assert order == ["first", "second"]
    assert second.waits_for == ""


class Function:
    """What `FunctionLock` looks at of a `tf.function`."""

    _variable_creation_config: object = None


def test_a_function_takes_the_build_lock_until_it_has_been_traced_once() -> None:
    function = Function()
    lock = FunctionLock(function, threading.RLock())
    with lock:
        assert BUILD_LOCK.held()
        function._variable_creation_config = object()
        with lock:
            assert BUILD_LOCK.held()
    assert not BUILD_LOCK.held()
    with lock:
        assert not BUILD_LOCK.held()


def test_steps_of_others_go_on_while_somebody_builds() -> None:
    """A function that was traced is called while another call holds the build lock."""
    function = Function()
    function._variable_creation_config = object()
    lock = FunctionLock(function, threading.RLock())
    stepped = threading.Event()

    def step() -> None:
        with lock:
            stepped.set()

    with call_context.working_for(CallContext(1, "builder")), BUILD_LOCK:
        in_thread(CallContext(2, "stepper"), step)
        assert stepped.wait(LIMIT)
