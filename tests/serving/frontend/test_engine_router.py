"""The router of a front end, before an engine of NumPy functions."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.channel import async_client as ports
from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, State, Version
from sublet.serving.control.versions import put
from sublet.serving.frontend.engine_router import EngineRouter
from sublet.serving.frontend.limits import CallBudget
from support.numpy_engine import NumpyEngine, floats, numpy_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NumpyEngine]:
    with numpy_engine(tmp_path_factory.mktemp("engine")) as one:
        one.add("double")
        yield one


def served(engine: NumpyEngine) -> Version:
    return Version("double", 1, State.AVAILABLE, engines=(engine.path,))


async def call(router: EngineRouter, version: Version, name: str = "serving_default") -> Any:
    answer = await router.infer(version, name, {"x": floats([[1, 2]])})
    return answer.outputs["y"].tolist()


def test_many_first_calls_go_through_one_port(engine: NumpyEngine) -> None:
    async def story() -> None:
        router = EngineRouter()
        version = served(engine)
        answers = await asyncio.gather(*(call(router, version) for _ in range(20)))
        assert answers == [[[2, 4]]] * 20
        assert len(router._clients) == 1
        assert sum(router.tally.runs["double", "Predict"].buckets) == 20
        router.close()

    asyncio.run(story())


def test_a_port_that_is_worn_out_is_replaced_and_its_calls_are_answered(
    engine: NumpyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "MOST_ROUTES", 4)

    async def story() -> None:
        router = EngineRouter()
        version = served(engine)
        for _ in range(4):
            for name in ("serving_default", "a", "b"):
                running = asyncio.ensure_future(call(router, version, name))
                if name == "serving_default":
                    assert await running == [[2, 4]]
                else:
                    with pytest.raises(ServingError, match="not found"):
                        await running
        used = [*router._retired, *router._clients.values()]
        assert len(used) > 1
        router.tidy()
        assert not router._retired
        assert [client.closed for client in used].count(False) == 1
        router.close()

    asyncio.run(story())


def test_what_lies_in_the_memory_of_the_desk_is_not_copied_for_the_only_engine(
    engine: NumpyEngine,
) -> None:
    async def story() -> None:
        router = EngineRouter()
        version = served(engine)
        assert len(router.memory(100)) == 100
        await call(router, version)
        (client,) = router._clients.values()
        memory = router.memory(1 << 20)
        x = np.frombuffer(memory, np.float32, offset=64).reshape(1, -1)
        x[:] = 3
        assert client._protocol.segments.find_lent(x) is not None
        answer = await router.infer(version, "serving_default", {"x": x})
        assert (answer.outputs["y"] == 6).all()
        router.close()

    asyncio.run(story())


@pytest.mark.parametrize("budget", [CallBudget(size=30), CallBudget(calls=4)])
def test_a_model_may_have_as_much_under_way_as_is_left_for_all_others(
    tmp_path: Path, budget: CallBudget
) -> None:
    """Each call has eight bytes."""

    async def story(own: NumpyEngine) -> None:
        router = EngineRouter()
        router.budget = budget
        held = Version("held", 1, State.AVAILABLE, engines=(own.path,))
        two = [asyncio.ensure_future(call(router, held)) for _ in range(2)]
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.001)
        with pytest.raises(ServingError, match="Too many calls of held wait") as info:
            await call(router, held)
        assert info.value.code == Code.UNAVAILABLE
        with pytest.raises(ServingError, match="Too many calls of held wait"):
            router.admit(held)  # The next one's body is not even read.
        other = asyncio.ensure_future(call(router, served(own)))
        own.touch("go")
        assert await asyncio.gather(*two, other) == [[[2, 4]]] * 3
        assert await asyncio.gather(*(call(router, held) for _ in range(2))) == [[[2, 4]]] * 2
        router.close()

    with numpy_engine(tmp_path) as own:
        own.add("held")
        own.add("double")
        asyncio.run(story(own))


def test_a_call_that_no_memory_is_left_for_is_refused(engine: NumpyEngine) -> None:
    async def story() -> None:
        router = EngineRouter()
        router.budget = CallBudget(7)
        with pytest.raises(ServingError, match="holds too many large requests") as info:
            await call(router, served(engine))
        assert info.value.code == Code.RESOURCE_EXHAUSTED
        router.close()

    asyncio.run(story())


def test_a_version_whose_engine_is_away_is_unavailable(tmp_path: Any) -> None:
    async def story() -> None:
        router = EngineRouter()
        for engines in ((), (str(tmp_path / "gone.sock"),)):
            with pytest.raises(ServingError, match="is being started again") as info:
                await call(router, Version("double", 1, State.AVAILABLE, engines=engines))
            assert info.value.code == Code.UNAVAILABLE

    asyncio.run(story())


def test_ports_to_engines_that_nobody_names_any_more_are_closed(engine: NumpyEngine) -> None:
    async def story() -> None:
        router = EngineRouter()
        version = served(engine)
        await router.update(put(Catalogue(), version))
        await call(router, router.catalogue.find("double"))
        (client,) = router._clients.values()
        await router.update(Catalogue())
        assert client.closed

    asyncio.run(story())


def test_requests_for_names_that_no_model_has_are_counted_as_one() -> None:
    router = EngineRouter()
    router.catalogue = put(Catalogue(), Version("a", 1, State.AVAILABLE))
    for name in ("a", "b", "c"):
        router.count(name, "Predict", "REST", Code.NOT_FOUND, 0.0)
    assert router.tally.requests == {("a", 5): 1, ("(unknown)", 5): 2}


def test_a_call_is_let_through_for_each_that_a_full_queue_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sublet.serving.frontend.backpressure._BELIEVED", 3600.0)

    async def story(own: NumpyEngine) -> None:
        router = EngineRouter()
        version = Version("held", 1, State.AVAILABLE, engines=(own.path,))
        router.admit(version)
        first = asyncio.ensure_future(call(router, version))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.001)
        two = [asyncio.ensure_future(call(router, version)) for _ in range(2)]
        (refused,), waits = await asyncio.wait(two, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ServingError, match="max_enqueued_batches is 1"):
            refused.result()
        with pytest.raises(ServingError, match="max_enqueued_batches is 1"):
            router.admit(version)
        own.touch("go")
        await asyncio.gather(first, *waits)
        for _ in (first, *waits):
            router.admit(version)
        with pytest.raises(ServingError, match="max_enqueued_batches is 1"):
            router.admit(version)
        router.close()

    with numpy_engine(tmp_path) as own:
        own.add("held", max_batch_size=1, max_enqueued_batches=1)
        asyncio.run(story(own))


def test_a_call_goes_to_the_engine_that_has_fewer_to_answer_and_never_to_one_that_has_ended(
    tmp_path: Path,
) -> None:
    async def story(busy: NumpyEngine, idle: NumpyEngine) -> None:
        router = EngineRouter()
        version = Version("held", 1, State.AVAILABLE, engines=(busy.path, idle.path))
        first = asyncio.ensure_future(call(router, version))
        while not (tmp_path / "busy" / "begun").exists():
            await asyncio.sleep(0.001)
        idle.touch("go")
        for _ in range(5):
            await call(router, version)
        assert not first.done()
        busy.touch("go")
        await first
        busy.close()
        while not router._clients[busy.path].closed:
            await asyncio.sleep(0.001)
        for _ in range(5):
            await call(router, version)
        router.close()

    for name in ("busy", "idle"):
        (tmp_path / name).mkdir()
    with numpy_engine(tmp_path / "busy") as busy, numpy_engine(tmp_path / "idle") as idle:
        for one in (busy, idle):
            one.add("held")
        asyncio.run(story(busy, idle))


def test_a_call_in_flight_is_answered_by_an_engine_that_nobody_names_any_more(
    tmp_path: Path,
) -> None:
    async def story(own: NumpyEngine) -> None:
        router = EngineRouter()
        version = Version("held", 1, State.AVAILABLE, engines=(own.path,))
        await router.update(put(Catalogue(), version))
        running = asyncio.ensure_future(call(router, version))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.001)
        (client,) = router._clients.values()
        await router.update(Catalogue())
        assert not client.closed
        own.touch("go")
        await running
        router.tidy()
        assert client.closed

    with numpy_engine(tmp_path) as own:
        own.add("held")
        asyncio.run(story(own))
