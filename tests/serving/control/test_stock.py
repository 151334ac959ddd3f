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
from support.hosts import Crowd, Puppet
from support.servers import HALF


class Shop:
    """A stock over a puppet, and a directory of models."""

    def __init__(self, root: Path, retries: Retries) -> None:
        self.root = root
        self.puppet = Puppet()
        self.other = Puppet("other ")
        self.homes: dict[str, tuple[Puppet, ...]] = {}
        """Of models that are not the puppet's."""
        self.crowd = Crowd()
        self.told: list[str] = []
        self.stock = Reconciler(
            lambda config: self.homes.get(config.name, (self.puppet,)),
            self.crowd,
            lambda *_: {},
            retries,
            self.told.append,
        )
        self.puppet.lost = lambda *how: self.stock.away(self.puppet, *how)
        self.other.lost = lambda *how: self.stock.away(self.other, *how)

    def put(self, name: str, number: int, content: bytes = b"graph") -> None:
        place = self.root / name / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / "saved_model.pb").write_bytes(content)

    def remove(self, name: str, number: int) -> None:
        place = self.root / name / str(number)
        (place / "saved_model.pb").unlink()
        place.rmdir()

    async def serve(self, *configs: str | ModelConfig) -> None:
        await self.stock.replace(
            [
                one if isinstance(one, ModelConfig) else ModelConfig(one, str(self.root / one))
                for one in configs
            ]
        )
        await self.stock.settled()

    async def look(self) -> None:
        await self.stock.refresh()
        await self.stock.settled()

    def states(self, name: str) -> dict[int, State]:
        return {n: one.state for n, one in self.stock.catalogue.models[name].versions.items()}


_NONE = Retries(0)
Story = Callable[[Shop], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Runs a story to its end."""

    def run(story: Story, retries: Retries = _NONE) -> None:
        async def whole() -> None:
            await story(Shop(tmp_path, retries))

        asyncio.run(whole())

    return run


def test_a_new_version_is_served_before_the_old_one_is_unloaded(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        shop.put("a", 2)
        await shop.look()
        assert shop.puppet.log == ["load a 1", "load a 2", "unload a 1"]
        assert shop.states("a") == {1: State.END, 2: State.AVAILABLE}
        # At no moment was there nothing to call.
        served = [news for news in shop.crowd.news if shop.crowd.news.index(news) > 2]
        assert all(news.find("a").number in (1, 2) for news in served)

    play(story)


def test_a_bad_version_stays_out_and_the_good_one_in(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        shop.put("a", 2)
        shop.puppet.bad["a", 2] = "it is damaged"
        await shop.look()
        assert shop.stock.catalogue.find("a").number == 1
        failed = shop.stock.catalogue.models["a"].versions[2]
        assert (failed.state, failed.code, failed.error) == (
            State.END,
            Code.DATA_LOSS,
            "it is damaged",
        )
        await shop.look()
        assert shop.puppet.log.count("load a 2") == 1
        assert len([line for line in shop.told if "it is damaged" in line]) == 1

    play(story)


def test_a_model_whose_loading_does_not_end_keeps_no_other_from_being_loaded(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sublet.serving.control.replicas._SLOW", 0.01)

    async def story(shop: Shop) -> None:
        shop.put("endless", 1)
        shop.put("good", 1)
        shop.puppet.endless.add(("endless", 1))
        serving = asyncio.create_task(shop.serve("endless", "good"))
        while ("good", 1) not in shop.puppet.loaded:
            await asyncio.sleep(0.001)
        assert shop.states("endless") == {1: State.LOADING}
        assert shop.told == ["endless version 1 takes long to load; others go on."]
        shop.stock.close()
        with pytest.raises(asyncio.CancelledError):
            await serving

    play(story)


def test_a_failed_version_is_tried_again_when_its_files_change(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1, b"half")
        shop.puppet.bad["a", 1] = "it is cut off"
        await shop.serve("a")
        del shop.puppet.bad["a", 1]
        await shop.look()
        assert shop.states("a") == {1: State.END}
        shop.put("a", 1, b"all of it")
        await shop.look()
        assert shop.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_failed_version_is_tried_again_so_often_and_no_more(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.puppet.bad["a", 1] = "the disk is slow"
        await shop.serve("a")
        for _ in range(6):
            await shop.look()
        assert shop.puppet.log == ["load a 1"] * 4

    play(story, Retries(3, 0.0))


def test_a_failed_version_that_is_taken_away_is_forgotten(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("a", 2)
        shop.puppet.bad["a", 2] = "it is damaged"
        await shop.serve("a")
        assert shop.states("a") == {2: State.END}
        shop.remove("a", 2)
        await shop.look()
        assert shop.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_model_that_is_not_named_any_more_is_unloaded(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("b", 1)
        await shop.serve("a", "b")
        await shop.serve("b")
        assert list(shop.stock.catalogue.models) == ["b"]
        assert shop.puppet.loaded == {("b", 1)}

    play(story)


def test_a_model_that_lies_elsewhere_now_is_loaded_from_there(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("other", 1)
        await shop.serve("a")
        await shop.serve(ModelConfig("a", str(shop.root / "other")))
        assert shop.puppet.known == {("a", 1): str(shop.root / "other" / "1")}
        assert shop.states("a") == {1: State.AVAILABLE}

    play(story)


def test_a_path_that_is_away_for_a_while_changes_nothing(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        (shop.root / "a").rename(shop.root / "b")
        await shop.look()
        assert shop.states("a") == {1: State.AVAILABLE}
        assert "Could not find base path" in shop.stock.troubles()["a"]
        (shop.root / "b").rename(shop.root / "a")
        await shop.look()
        assert not shop.stock.troubles()

    play(story)


def test_labels_count_at_once(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve(ModelConfig("a", str(shop.root / "a"), labels={"stable": 1, "next": 2}))
        assert shop.stock.catalogue.find("a", label="stable").number == 1
        with pytest.raises(ServingError, match=r"Specific\(a, 2\)"):
            shop.stock.catalogue.find("a", label="next")

    play(story)


def test_after_an_engine_has_ended_the_next_one_gets_its_models(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("b", 1)
        await shop.serve("a", "b")
        shop.puppet.die([])
        assert shop.stock.catalogue.find("a").engines == ()
        await shop.stock.back(shop.puppet)
        assert shop.stock.catalogue.find("a").engines == ("engine-2",)
        assert shop.puppet.loaded == {("a", 1), ("b", 1)}

    play(story)


def test_a_model_that_ends_two_engines_while_it_loads_is_not_tried_again(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("deadly", 1)
        shop.puppet.deadly.add(("deadly", 1))
        await shop.serve("a", "deadly")
        await shop.stock.back(shop.puppet)
        for _ in range(3):
            await shop.look()
        assert shop.puppet.log.count("load deadly 1") == 2
        assert shop.states("deadly") == {1: State.END}
        assert shop.states("a") == {1: State.AVAILABLE}

    play(story, Retries(5, 0.0))


def test_those_who_wait_for_their_turn_while_the_engine_ends_are_served_by_the_next(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        for name in ("a", "b", "deadly"):
            shop.put(name, 1)
        shop.puppet.deadly.add(("deadly", 1))
        # All are known to the engine before the first load ends it.
        shop.puppet.gate.clear()
        serving = asyncio.create_task(shop.serve("deadly", "a", "b"))
        while len(shop.puppet.known) < 3:
            await asyncio.sleep(0)
        shop.puppet.gate.set()
        await serving
        assert shop.states("deadly") == {1: State.END}
        assert shop.states("a") == shop.states("b") == {1: State.AVAILABLE}

    play(story)


def test_a_model_that_is_loaded_anew_and_ends_the_engine_is_taken_out(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("b", 1)
        await shop.serve("a", "b")
        shop.puppet.deadly.add(("a", 1))
        shop.puppet.die([])
        for _ in range(3):
            await shop.stock.back(shop.puppet)
        assert shop.states("a") == {1: State.END}
        assert shop.states("b") == {1: State.AVAILABLE}
        assert shop.stock.catalogue.find("b").engines == (shop.puppet.path,)

    play(story)


def test_what_does_not_fit_is_looked_into_and_loaded_by_its_first_call(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.puppet.room = 1
        for name in ("a", "b"):
            shutil.copytree(HALF, shop.root / name / "1")
        await shop.serve("a", "b")
        assert shop.puppet.log == ["load a 1"]
        assert set(shop.puppet.known) == {("a", 1), ("b", 1)}
        signatures = shop.stock.catalogue.find("b").signatures
        assert signatures is not None
        assert "serving_default" in signatures

    play(story)


def test_a_version_that_takes_anothers_place_is_loaded_however_full_it_is(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.puppet.room = 1
        shutil.copytree(HALF, shop.root / "a" / "1")
        await shop.serve("a")
        shutil.copytree(HALF, shop.root / "a" / "2")
        await shop.look()
        assert shop.puppet.log == ["load a 1", "load a 2", "unload a 1"]

    play(story)


def test_a_version_that_is_kept_for_want_of_a_better_one_survives_its_engine(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        shop.put("a", 2)
        shop.puppet.bad["a", 2] = "it is damaged"
        await shop.look()
        shop.puppet.die([])
        await shop.stock.back(shop.puppet)
        assert shop.stock.catalogue.find("a").number == 1
        assert shop.stock.catalogue.find("a").engines == ("engine-2",)
        assert ("a", 1) in shop.puppet.loaded

    play(story)


def test_an_engine_that_ends_between_a_look_and_its_news_costs_no_model(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.puppet.gate.clear()
        shop.put("a", 1)
        await shop.stock.replace([ModelConfig("a", str(shop.root / "a"))])
        loading = asyncio.create_task(shop.stock.settled())
        while not shop.puppet.known:
            await asyncio.sleep(0)
        shop.puppet.die([])
        shop.puppet.gate.set()
        await loading
        assert shop.stock.catalogue.find("a").engines == ("engine-2",)
        assert ("a", 1) in shop.puppet.known

    play(story)


def test_a_model_that_ends_engines_while_it_runs_is_put_away_and_tried_again(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        shop.put("fragile", 1)
        await shop.serve("a", "fragile")
        for left in (True, False):
            shop.puppet.die([], [("fragile", 1)])
            await shop.stock.back(shop.puppet)
            assert (("fragile", 1) in shop.puppet.known) == left
        assert not shop.puppet.suspects
        with pytest.raises(ServingError, match=r"ended while they ran fragile.*--isolate") as told:
            shop.stock.catalogue.find("fragile")
        assert told.value.code == Code.UNAVAILABLE
        assert shop.stock.catalogue.find("a").engines == (shop.puppet.path,)
        await shop.look()
        assert shop.stock.catalogue.find("fragile").engines == (shop.puppet.path,)
        # It has been tried again: once is enough now, and twice in all.
        shop.puppet.die([], [("fragile", 1)])
        await shop.stock.back(shop.puppet)
        await shop.look()
        shop.puppet.die([], [("fragile", 1)])
        await shop.stock.back(shop.puppet)
        for _ in range(3):
            await shop.look()
        assert shop.states("fragile") == {1: State.END}
        shop.put("fragile", 1, b"mended")
        await shop.look()
        assert shop.states("fragile") == {1: State.AVAILABLE}

    play(story, Retries(2, 0.0))


def test_a_model_that_ran_beside_the_one_that_ends_engines_is_served_on(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        for name in ("fragile", "beside", "new"):
            shop.put(name, 1)
        await shop.serve("fragile", "beside", "new")
        shop.puppet.die([("new", 1)], [("fragile", 1), ("beside", 1)])
        await shop.stock.back(shop.puppet)
        assert shop.puppet.suspects == {("fragile", 1), ("beside", 1), ("new", 1)}
        shop.puppet.die([], [("fragile", 1)])
        await shop.stock.back(shop.puppet)
        assert set(shop.puppet.known) == {("beside", 1), ("new", 1)}
        for _ in range(3):
            shop.puppet.die([], [("beside", 1), ("new", 1)])
            await shop.stock.back(shop.puppet)
        assert set(shop.puppet.known) == {("beside", 1), ("new", 1)}

    play(story)


def test_a_model_that_harms_nobody_else_is_served_however_often_it_ends_its_engine(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("fragile", 1)
        await shop.serve("fragile")
        for _ in range(5):
            shop.puppet.die([], [("fragile", 1)])
            await shop.stock.back(shop.puppet)
        assert shop.stock.catalogue.find("fragile").engines == (shop.puppet.path,)

    play(story)


async def begun_to_move(shop: Shop) -> "asyncio.Task[None]":
    """Model `a` is on its way to the other engine, and is there when that one's gate is open."""
    shop.homes["a"] = (shop.other,)
    shop.other.gate.clear()
    moving = asyncio.create_task(shop.serve("a"))
    while not shop.other.known:
        await asyncio.sleep(0)
    return moving


def test_a_model_that_moves_is_served_by_its_new_engine_before_it_leaves_the_old_one(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        moving = await begun_to_move(shop)
        assert shop.stock.catalogue.find("a").engines == (shop.puppet.path,)
        shop.other.gate.set()
        await moving
        assert shop.stock.catalogue.find("a").engines == (shop.other.path,)
        assert shop.stock.catalogue.find("a").devices == ("other ",)
        assert (shop.puppet.known, shop.other.loaded) == ({}, {("a", 1)})
        assert not shop.stock.has(shop.puppet)
        served = [news for news in shop.crowd.news if shop.crowd.news.index(news) > 2]
        assert all(news.find("a").engines for news in served)

    play(story)


def test_a_model_that_cannot_be_where_it_is_wanted_stays_where_it_is(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        shop.homes["a"] = (shop.other,)
        shop.other.bad["a", 1] = "there is no room"
        await shop.serve("a")
        await shop.look()
        assert shop.stock.catalogue.find("a").engines == (shop.puppet.path,)
        assert shop.other.log == ["load a 1"]
        assert shop.told == ["a version 1 is not on other : there is no room"]
        del shop.other.bad["a", 1]
        await shop.serve("a")
        assert shop.stock.catalogue.find("a").engines == (shop.other.path,)

    play(story)


def test_a_model_with_replicas_is_served_as_long_as_one_of_its_engines_is_there(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.homes["a"] = (shop.puppet, shop.other)
        shop.put("a", 1)
        await shop.serve("a")
        assert set(shop.stock.catalogue.find("a").engines) == {shop.puppet.path, shop.other.path}
        shop.other.die([])
        assert shop.stock.catalogue.find("a").engines == (shop.puppet.path,)
        shop.puppet.die([])
        assert shop.stock.catalogue.find("a").engines == ()
        await shop.stock.back(shop.other)
        assert shop.stock.catalogue.find("a").engines == (shop.other.path,)
        await shop.stock.back(shop.puppet)
        assert len(shop.stock.catalogue.find("a").engines) == 2
        shop.homes["a"] = (shop.other,)
        await shop.serve("a")
        assert shop.stock.catalogue.find("a").engines == (shop.other.path,)
        assert not shop.puppet.known

    play(story)


def test_a_replica_that_cannot_be_loaded_does_not_cost_the_other(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.homes["a"] = (shop.puppet, shop.other)
        shop.other.bad["a", 1] = "there is no room"
        shop.put("a", 1)
        await shop.serve("a")
        await shop.look()
        assert shop.stock.catalogue.find("a").engines == (shop.puppet.path,)
        assert shop.other.log == ["load a 1"]
        assert not shop.other.known

    play(story)


def test_a_replica_that_fails_everywhere_is_a_model_that_failed(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.homes["a"] = (shop.puppet, shop.other)
        for puppet in (shop.puppet, shop.other):
            puppet.bad["a", 1] = "it is damaged"
        shop.put("a", 1)
        await shop.serve("a")
        assert shop.states("a") == {1: State.END}
        assert len([line for line in shop.told if "it is damaged" in line]) == 1

    play(story)


def test_a_replica_that_ends_its_engines_is_taken_out_of_the_others_too(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.homes["fragile"] = (shop.puppet, shop.other)
        for name in ("a", "fragile"):
            shop.put(name, 1)
        await shop.serve("a", "fragile")
        for _ in range(2):
            shop.puppet.die([], [("fragile", 1)])
            await shop.stock.back(shop.puppet)
        await shop.stock.settled()
        assert shop.states("fragile") == {1: State.END}
        assert not shop.other.known
        assert set(shop.puppet.known) == {("a", 1)}

    play(story)


def test_an_engine_that_ends_takes_only_its_own_models_away(play: Callable[..., None]) -> None:
    async def story(shop: Shop) -> None:
        shop.homes["b"] = (shop.other,)
        for name in ("a", "b"):
            shop.put(name, 1)
        await shop.serve("a", "b")
        shop.puppet.die([])
        assert shop.stock.catalogue.find("a").engines == ()
        assert shop.stock.catalogue.find("b").engines == (shop.other.path,)

    play(story)


def test_an_engine_that_ends_while_a_model_moves_to_it_costs_nothing(
    play: Callable[..., None],
) -> None:
    async def story(shop: Shop) -> None:
        shop.put("a", 1)
        await shop.serve("a")
        moving = await begun_to_move(shop)
        shop.other.die([])
        shop.other.gate.set()
        await moving
        assert shop.stock.catalogue.find("a").engines == ("other engine-2",)
        assert set(shop.other.known) == {("a", 1)}

    play(story)
