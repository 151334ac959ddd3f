"""The turn to build: one call at a time, and never a deadlock with a function's own lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sublet.inside.isolation import call_context
from sublet.inside.isolation.build_lock import TURN, BuildLock, FunctionLock
from sublet.inside.isolation.call_context import CallContext

LIMIT = 60


def in_thread(call: CallContext | None, work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        with call_context.working_for(call):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_call_has_the_turn_again_and_in_all_its_threads() -> None:
    turn, call = BuildLock(), CallContext(1, "one")
    helped = threading.Event()

    def help_out() -> None:
        with turn:
            helped.set()

    with call_context.working_for(call), turn, turn:
        in_thread(call, help_out).join(LIMIT)
        assert turn.held()
    assert helped.is_set()
    assert not turn.held()


def test_another_call_waits_for_its_turn_and_says_for_whom() -> None:
    turn, first, second = BuildLock(), CallContext(1, "one"), CallContext(2, "two")
    order: list[str] = []

    def build() -> None:
        with turn:
            order.append("second")

    with call_context.working_for(first), turn:
        thread = in_thread(second, build)
        while not second.waits_for:
            assert thread.is_alive()
        assert second.waits_for == "its turn to build, which call 1 (one) has"
        order.append("first")
    thread.join(LIMIT)
    assert order == ["first", "second"]
    assert second.waits_for == ""


class Function:
    """What `FunctionLock` looks at of a `tf.function`."""

    _variable_creation_config: object = None


def test_a_function_brings_the_turn_until_it_has_been_traced_once() -> None:
    function = Function()
    lock = FunctionLock(function, threading.RLock())
    with lock:
        assert TURN.held()
        function._variable_creation_config = object()
        with lock:
            assert TURN.held()
    assert not TURN.held()
    with lock:
        assert not TURN.held()


def test_steps_of_others_go_on_while_somebody_builds() -> None:
    """A function that was traced is called while another call has the turn."""
    function = Function()
    function._variable_creation_config = object()
    lock = FunctionLock(function, threading.RLock())
    stepped = threading.Event()

    def step() -> None:
        with lock:
            stepped.set()

    with call_context.working_for(CallContext(1, "builder")), TURN:
        in_thread(CallContext(2, "stepper"), step)
        assert stepped.wait(LIMIT)
