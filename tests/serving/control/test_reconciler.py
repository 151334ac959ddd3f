"""Models come and go; what works is never lost for what does not."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import State
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.control.load_failures import Retries
from sublet.serving.control.reconciler import Reconciler
from support.puppet_engines import PuppetEngine, RecordingPublisher
from support.servers import HALF


class Cluster:
    """A reconciler over a puppet, and a directory of models."""

    def __init__(self, root: Path, retries: Retries) -> None:
        self.root = root
        self.puppet = PuppetEngine()
        self.other = PuppetEngine("other ")
        self.homes: dict[str, tuple[PuppetEngine, ...]] = {}
        """Of models that are not the puppet's."""
        self.crowd = RecordingPublisher()
        self.answer: list[str] = []
        self.reconciler = Reconciler(
            lambda config: self.homes.get(config.name, (self.puppet,)),
            self.crowd,
            lambda *_: {},
            retries,
            self.answer.append,
        )
        self.puppet.lost = lambda *how: self.reconciler.engine_ended(self.puppet, *how)
        self.other.lost = lambda *how: self.reconciler.engine_ended(self.other, *how)

    def put(self, name: str, number: int, content: bytes = b"graph") -> None:
        place = self.root / name / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / "saved_model.pb").write_bytes(content)

    def remove(self, name: str, number: int) -> None:
        place = self.root / name / str(number)
        (place / "saved_model.pb").unlink()
        place.rmdir()

    async def serve(self, *configs: str | ModelConfig) -> None:
        await self.reconciler.replace(
            [
                one if isinstance(one, ModelConfig) else ModelConfig(one, str(self.root / one))
                for one in configs
            ]
        )
        await self.reconciler.settled()

    async def look(self) -> None:
        await self.reconciler.refresh()
        await self.reconciler.settled()

    def states(self, name: str) -> dict[int, State]:
        return {n: one.state for n, one in self.reconciler.catalogue.models[name].versions.items()}


_NONE = Retries(0)
Story = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Runs a story to its end."""

    def run(story: Story, retries: Retries = _NONE) -> None:
        async def whole() -> None:
            await story(Cluster(tmp_path, retries))

        asyncio.run(whole())

    return run


def test_a_new_version_is_served_before_the_old_one_is_unloaded(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        cluster.put("a", 2)
        await cluster.look()
        assert cluster.puppet.log == ["load a 1", "load a 2", "unload a 1"]
        assert cluster.states("a") == {1: State.END, 2: State.AVAILABLE}
        # At no moment was there nothing to call.
        served = [news for news in cluster.crowd.news if cluster.crowd.news.index(news) > 2]
        assert all(news.find("a").number in (1, 2) for news in served)

    play(story)


def test_a_bad_version_stays_out_and_the_good_one_in(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        cluster.put("a", 2)
        cluster.puppet.bad["a", 2] = "it is damaged"
        await cluster.look()
        assert cluster.reconciler.catalogue.find("a").number == 1
        failed = cluster.reconciler.catalogue.models["a"].versions[2]
        assert (failed.state, failed.code, failed.error) == (
            State.END,
            Code.DATA_LOSS,
            "it is damaged",
        )
        await cluster.look()
        assert cluster.puppet.log.count("load a 2") == 1
        assert len([line for line in cluster.answer if "it is damaged" in line]) == 1

    play(story)


def test_a_model_whose_loading_does_not_end_keeps_no_other_from_being_loaded(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sublet.serving.control.replicas._SLOW", 0.01)

    async def story(cluster: Cluster) -> None:
        cluster.put("endless", 1)
        cluster.put("good", 1)
        cluster.puppet.endless.add(("endless", 1))
        serving = asyncio.create_task(cluster.serve("endless", "good"))
        while ("good", 1) not in cluster.puppet.loaded:
            await asyncio.sleep(0.001)
        assert cluster.states("endless") == {1: State.LOADING}
        assert cluster.answer == ["endless version 1 takes long to load; others go on."]
        cluster.reconciler.close()
        with pytest.raises(asyncio.CancelledError):
            await serving

    play(story)


def test_a_failed_version_is_tried_again_when_its_files_change(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1, b"half")
        cluster.puppet.bad["a", 1] = "it is cut off"
        await cluster.serve("a")
        del cluster.puppet.bad["a", 1]
        await cluster.look()
        assert cluster.states("a") == {1: State.END}
        cluster.put("a", 1, b"all of it")
        await cluster.look()
        assert cluster.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_failed_version_is_tried_again_so_often_and_no_more(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.puppet.bad["a", 1] = "the disk is slow"
        await cluster.serve("a")
        for _ in range(6):
            await cluster.look()
        assert cluster.puppet.log == ["load a 1"] * 4

    play(story, Retries(3, 0.0))


def test_a_failed_version_that_is_taken_away_is_forgotten(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("a", 2)
        cluster.puppet.bad["a", 2] = "it is damaged"
        await cluster.serve("a")
        assert cluster.states("a") == {2: State.END}
        cluster.remove("a", 2)
        await cluster.look()
        assert cluster.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_model_that_is_not_named_any_more_is_unloaded(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("b", 1)
        await cluster.serve("a", "b")
        await cluster.serve("b")
        assert list(cluster.reconciler.catalogue.models) == ["b"]
        assert cluster.puppet.loaded == {("b", 1)}

    play(story)


def test_a_model_that_lies_elsewhere_now_is_loaded_from_there(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("other", 1)
        await cluster.serve("a")
        await cluster.serve(ModelConfig("a", str(cluster.root / "other")))
        assert cluster.puppet.known == {("a", 1): str(cluster.root / "other" / "1")}
        assert cluster.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_path_that_is_away_for_a_while_changes_nothing(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        (cluster.root / "a").rename(cluster.root / "b")
        await cluster.look()
        assert cluster.states("a") == {1: State.AVAILABLE}
        assert "Could not find base path" in cluster.reconciler.troubles()["a"]
        (cluster.root / "b").rename(cluster.root / "a")
        await cluster.look()
        assert not cluster.reconciler.troubles()

    play(story)


def test_labels_count_at_once(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve(
            ModelConfig("a", str(cluster.root / "a"), labels={"stable": 1, "next": 2})
        )
        assert cluster.reconciler.catalogue.find("a", label="stable").number == 1
        with pytest.raises(ServingError, match=r"Specific\(a, 2\)"):
            cluster.reconciler.catalogue.find("a", label="next")

    play(story)


def test_after_an_engine_has_ended_the_next_one_gets_its_models(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("b", 1)
        await cluster.serve("a", "b")
        cluster.puppet.die([])
        assert cluster.reconciler.catalogue.find("a").engines == ()
        await cluster.reconciler.engine_started(cluster.puppet)
        assert cluster.reconciler.catalogue.find("a").engines == ("engine-2",)
        assert cluster.puppet.loaded == {("a", 1), ("b", 1)}

    play(story)


def test_a_model_that_ends_two_engines_while_it_loads_is_not_tried_again(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("deadly", 1)
        cluster.puppet.deadly.add(("deadly", 1))
        await cluster.serve("a", "deadly")
        await cluster.reconciler.engine_started(cluster.puppet)
        for _ in range(3):
            await cluster.look()
        assert cluster.puppet.log.count("load deadly 1") == 2
        assert cluster.states("deadly") == {1: State.END}
        assert cluster.states("a") == {1: State.AVAILABLE}

    play(story, Retries(5, 0.0))


def test_those_who_wait_for_their_turn_while_the_engine_ends_are_served_by_the_next(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        for name in ("a", "b", "deadly"):
            cluster.put(name, 1)
        cluster.puppet.deadly.add(("deadly", 1))
        # All are known to the engine before the first load ends it.
        cluster.puppet.gate.clear()
        serving = asyncio.create_task(cluster.serve("deadly", "a", "b"))
        while len(cluster.puppet.known) < 3:
            await asyncio.sleep(0)
        cluster.puppet.gate.set()
        await serving
        assert cluster.states("deadly") == {1: State.END}
        assert cluster.states("a") == cluster.states("b") == {1: State.AVAILABLE}

    play(story)


def test_a_model_that_is_loaded_anew_and_ends_the_engine_is_taken_out(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("b", 1)
        await cluster.serve("a", "b")
        cluster.puppet.deadly.add(("a", 1))
        cluster.puppet.die([])
        for _ in range(3):
            await cluster.reconciler.engine_started(cluster.puppet)
        assert cluster.states("a") == {1: State.END}
        assert cluster.states("b") == {1: State.AVAILABLE}
        assert cluster.reconciler.catalogue.find("b").engines == (cluster.puppet.path,)

    play(story)


def test_what_does_not_fit_is_looked_into_and_loaded_by_its_first_call(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.puppet.capacity = 1
        for name in ("a", "b"):
            shutil.copytree(HALF, cluster.root / name / "1")
        await cluster.serve("a", "b")
        assert cluster.puppet.log == ["load a 1"]
        assert set(cluster.puppet.known) == {("a", 1), ("b", 1)}
        signatures = cluster.reconciler.catalogue.find("b").signatures
        assert signatures is not None
        assert "serving_default" in signatures

    play(story)


def test_a_version_that_takes_anothers_place_is_loaded_however_full_it_is(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.puppet.capacity = 1
        shutil.copytree(HALF, cluster.root / "a" / "1")
        await cluster.serve("a")
        shutil.copytree(HALF, cluster.root / "a" / "2")
        await cluster.look()
        assert cluster.puppet.log == ["load a 1", "load a 2", "unload a 1"]

    play(story)


def test_a_version_that_is_kept_for_want_of_a_better_one_survives_its_engine(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        cluster.put("a", 2)
        cluster.puppet.bad["a", 2] = "it is damaged"
        await cluster.look()
        cluster.puppet.die([])
        await cluster.reconciler.engine_started(cluster.puppet)
        assert cluster.reconciler.catalogue.find("a").number == 1
        assert cluster.reconciler.catalogue.find("a").engines == ("engine-2",)
        assert ("a", 1) in cluster.puppet.loaded

    play(story)


def test_an_engine_that_ends_between_a_look_and_its_news_costs_no_model(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.puppet.gate.clear()
        cluster.put("a", 1)
        await cluster.reconciler.replace([ModelConfig("a", str(cluster.root / "a"))])
        loading = asyncio.create_task(cluster.reconciler.settled())
        while not cluster.puppet.known:
            await asyncio.sleep(0)
        cluster.puppet.die([])
        cluster.puppet.gate.set()
        await loading
        assert cluster.reconciler.catalogue.find("a").engines == ("engine-2",)
        assert ("a", 1) in cluster.puppet.known

    play(story)


def test_a_model_that_ends_engines_while_it_runs_is_put_away_and_tried_again(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        cluster.put("fragile", 1)
        await cluster.serve("a", "fragile")
        for left in (True, False):
            cluster.puppet.die([], [("fragile", 1)])
            await cluster.reconciler.engine_started(cluster.puppet)
            assert (("fragile", 1) in cluster.puppet.known) == left
        assert not cluster.puppet.suspects
        with pytest.raises(
            ServingError, match=r"ended while they ran fragile.*--isolate"
        ) as answer:
            cluster.reconciler.catalogue.find("fragile")
        assert answer.value.code == Code.UNAVAILABLE
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.puppet.path,)
        await cluster.look()
        assert cluster.reconciler.catalogue.find("fragile").engines == (cluster.puppet.path,)
        # It has been tried again: once is enough now, and twice in all.
        cluster.puppet.die([], [("fragile", 1)])
        await cluster.reconciler.engine_started(cluster.puppet)
        await cluster.look()
        cluster.puppet.die([], [("fragile", 1)])
        await cluster.reconciler.engine_started(cluster.puppet)
        for _ in range(3):
            await cluster.look()
        assert cluster.states("fragile") == {1: State.END}
        cluster.put("fragile", 1, b"mended")
        await cluster.look()
        assert cluster.states("fragile") == {1: State.AVAILABLE}

    play(story, Retries(2, 0.0))


def test_a_model_that_ran_beside_the_one_that_ends_engines_is_served_on(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        for name in ("fragile", "beside", "new"):
            cluster.put(name, 1)
        await cluster.serve("fragile", "beside", "new")
        cluster.puppet.die([("new", 1)], [("fragile", 1), ("beside", 1)])
        await cluster.reconciler.engine_started(cluster.puppet)
        assert cluster.puppet.suspects == {("fragile", 1), ("beside", 1), ("new", 1)}
        cluster.puppet.die([], [("fragile", 1)])
        await cluster.reconciler.engine_started(cluster.puppet)
        assert set(cluster.puppet.known) == {("beside", 1), ("new", 1)}
        for _ in range(3):
            cluster.puppet.die([], [("beside", 1), ("new", 1)])
            await cluster.reconciler.engine_started(cluster.puppet)
        assert set(cluster.puppet.known) == {("beside", 1), ("new", 1)}

    play(story)


def test_a_model_that_harms_nobody_else_is_served_however_often_it_ends_its_engine(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("fragile", 1)
        await cluster.serve("fragile")
        for _ in range(5):
            cluster.puppet.die([], [("fragile", 1)])
            await cluster.reconciler.engine_started(cluster.puppet)
        assert cluster.reconciler.catalogue.find("fragile").engines == (cluster.puppet.path,)

    play(story)


async def begun_to_move(cluster: Cluster) -> "asyncio.Task[None]":
    """Model `a` is on its way to the other engine, and is there when that one's gate is open."""
    cluster.homes["a"] = (cluster.other,)
    cluster.other.gate.clear()
    moving = asyncio.create_task(cluster.serve("a"))
    while not cluster.other.known:
        await asyncio.sleep(0)
    return moving


def test_a_model_that_moves_is_served_by_its_new_engine_before_it_leaves_the_old_one(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        moving = await begun_to_move(cluster)
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.puppet.path,)
        cluster.other.gate.set()
        await moving
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.other.path,)
        assert cluster.reconciler.catalogue.find("a").devices == ("other ",)
        assert (cluster.puppet.known, cluster.other.loaded) == ({}, {("a", 1)})
        assert not cluster.reconciler.uses(cluster.puppet)
        served = [news for news in cluster.crowd.news if cluster.crowd.news.index(news) > 2]
        assert all(news.find("a").engines for news in served)

    play(story)


def test_a_model_that_cannot_be_where_it_is_wanted_stays_where_it_is(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        cluster.homes["a"] = (cluster.other,)
        cluster.other.bad["a", 1] = "there is no room"
        await cluster.serve("a")
        await cluster.look()
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.puppet.path,)
        assert cluster.other.log == ["load a 1"]
        assert cluster.answer == ["a version 1 is not on other : there is no room"]
        del cluster.other.bad["a", 1]
        await cluster.serve("a")
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.other.path,)

    play(story)


def test_a_model_with_replicas_is_served_as_long_as_one_of_its_engines_is_there(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.homes["a"] = (cluster.puppet, cluster.other)
        cluster.put("a", 1)
        await cluster.serve("a")
        assert set(cluster.reconciler.catalogue.find("a").engines) == {
            cluster.puppet.path,
            cluster.other.path,
        }
        cluster.other.die([])
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.puppet.path,)
        cluster.puppet.die([])
        assert cluster.reconciler.catalogue.find("a").engines == ()
        await cluster.reconciler.engine_started(cluster.other)
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.other.path,)
        await cluster.reconciler.engine_started(cluster.puppet)
        assert len(cluster.reconciler.catalogue.find("a").engines) == 2
        cluster.homes["a"] = (cluster.other,)
        await cluster.serve("a")
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.other.path,)
        assert not cluster.puppet.known

    play(story)


def test_a_replica_that_cannot_be_loaded_does_not_cost_the_other(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.homes["a"] = (cluster.puppet, cluster.other)
        cluster.other.bad["a", 1] = "there is no room"
        cluster.put("a", 1)
        await cluster.serve("a")
        await cluster.look()
        assert cluster.reconciler.catalogue.find("a").engines == (cluster.puppet.path,)
        assert cluster.other.log == ["load a 1"]
        assert not cluster.other.known

    play(story)


def test_a_replica_that_fails_everywhere_is_a_model_that_failed(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.homes["a"] = (cluster.puppet, cluster.other)
        for puppet in (cluster.puppet, cluster.other):
            puppet.bad["a", 1] = "it is damaged"
        cluster.put("a", 1)
        await cluster.serve("a")
        assert cluster.states("a") == {1: State.END}
        assert len([line for line in cluster.answer if "it is damaged" in line]) == 1

    play(story)


def test_a_replica_that_ends_its_engines_is_taken_out_of_the_others_too(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.homes["fragile"] = (cluster.puppet, cluster.other)
        for name in ("a", "fragile"):
            cluster.put(name, 1)
        await cluster.serve("a", "fragile")
        for _ in range(2):
            cluster.puppet.die([], [("fragile", 1)])
            await cluster.reconciler.engine_started(cluster.puppet)
        await cluster.reconciler.settled()
        assert cluster.states("fragile") == {1: State.END}
        assert not cluster.other.known
        assert set(cluster.puppet.known) == {("a", 1)}

    play(story)


def test_an_engine_that_ends_takes_only_its_own_models_away(play: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.homes["b"] = (cluster.other,)
        for name in ("a", "b"):
            cluster.put(name, 1)
        await cluster.serve("a", "b")
        cluster.puppet.die([])
        assert cluster.reconciler.catalogue.find("a").engines == ()
        assert cluster.reconciler.catalogue.find("b").engines == (cluster.other.path,)

    play(story)


def test_an_engine_that_ends_while_a_model_moves_to_it_costs_nothing(
    play: Callable[..., None],
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put("a", 1)
        await cluster.serve("a")
        moving = await begun_to_move(cluster)
        cluster.other.die([])
        cluster.other.gate.set()
        await moving
        assert cluster.reconciler.catalogue.find("a").engines == ("other engine-2",)
        assert set(cluster.other.known) == {("a", 1)}

    play(story)
