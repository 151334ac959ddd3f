"""What is said of an engine's end, and whether what it ran may be why."""

import asyncio
import signal

import pytest

from sublet.domain.job import Cause, Outcome
from sublet.engine.flight_recorder import FlightRecorder
from sublet.serving.control import engine_life
from sublet.wire.messages import Ended

RUNNING = [("a", 1)]


def judged(
    cause: Cause, code: int, before: int | None = 0, after: int | None = 0
) -> engine_life.EngineEnd:
    return engine_life.judge(Outcome(cause, code), before, after)


@pytest.mark.parametrize(
    ("cause", "code", "said"),
    [
        ("exited", 3, "The engine ended with code 3 while it ran a 1."),
        ("signalled", 139, "The engine ended (signal 11, SIGSEGV) while it ran a 1."),
        ("lease exceeded", 1, "The engine ended (lease exceeded) while it ran a 1."),
    ],
)
def test_an_end_of_its_own_making_names_what_it_ran(cause: Cause, code: int, said: str) -> None:
    end = judged(cause, code)
    assert end.own
    assert end.text([], RUNNING) == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_model_is_suspected_of_a_signal_that_somebody_sends(number: signal.Signals) -> None:
    assert not judged("signalled", 128 + number).own


def test_a_kill_while_the_kernel_killed_for_memory_says_so_and_has_suspects() -> None:
    end = judged("signalled", 137, before=4, after=5)
    assert end.own
    said = end.text([("b", 2)], RUNNING)
    assert "by the kernel for lack of memory while it loaded b 2, while it ran a 1." in said
    assert "dmesg" in said
    assert "--memory" in said


def test_a_kill_that_was_not_the_kernels_has_no_suspects() -> None:
    end = judged("signalled", 137, before=4, after=4)
    assert not end.own
    assert end.text([], []) == "The engine was killed (signal 9) by somebody."


@pytest.mark.parametrize(("code", "blamed"), [(134, [("a", 1)]), (137, []), (143, [])])
def test_a_model_that_was_being_loaded_is_suspected_of_ends_of_the_engines_own(
    code: int, blamed: list[tuple[str, int]]
) -> None:
    recorder = FlightRecorder()

    async def ended() -> engine_life.EngineLife:
        life = engine_life.EngineLife(recorder)
        life.hear({"event": "loading", "model": "a", "version": 1})
        life.end(Ended(1, Outcome("signalled", code), None, "warm", 1))
        return life

    life = asyncio.run(ended())
    recorder.close()
    assert "while it loaded a 1" in life.cause
    assert list(life.loading) == blamed


def test_where_the_kernel_does_not_count_it_is_only_said_to_be_possible() -> None:
    end = judged("signalled", 137, None, None)
    assert not end.own
    assert "perhaps by the kernel" in end.text([], [])


def test_the_kernel_is_asked_how_often_it_has_killed() -> None:
    found = engine_life.oom_kills()
    assert found is None or found >= 0


def test_a_kernel_that_does_not_count_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_life, "_KERNEL", "/proc/self/comm")
    assert engine_life.oom_kills() is None
