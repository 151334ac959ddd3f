"""Nurseries that come to nothing, with interpreters of our own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sublet.backends.local import nurseries
from sublet.backends.local.nurseries import Nurseries, Nursery, NurseryKey
from sublet.reactor import Reactor
from support.sandbox import wait_for

WARM = """
import json, os, socket, sys
link = socket.socket(fileno=int(sys.argv[3]))
link.send(json.dumps({"event": "warm", "tensorflow": "0", "packages": {}, "variables": [],
                      "written": {}}).encode())
"""


def plenty() -> int:
    """Room for a nursery."""
    return nurseries.USUAL


class Place:
    """Nurseries of one interpreter, and how often it was started."""

    def __init__(self, root: Path) -> None:
        self.reactor = Reactor()
        self.python = root / "python"
        self.log = root / "log"
        self.all = Nurseries(self.reactor, self.log, str(root), lambda: None)
        self.key = NurseryKey(str(self.python), ())

    def runs(self, code: str) -> None:
        """Let this be what the interpreter does, whatever it is told."""
        text = f"#!{sys.executable}\nprint('began', flush=True)\n{code}"
        self.python.write_text(text)
        self.python.chmod(0o700)

    def turn_until(self, condition: Callable[[], object], what: str) -> None:
        self.reactor.call_later(0.01, lambda: None)

        def turned() -> object:
            self.reactor.call_later(0.01, lambda: None)
            self.reactor.run_once()
            return condition()

        wait_for(turned, what)

    def find(self) -> Nursery:
        found = self.all.find(self.key, plenty)
        assert found is not None
        return found

    def began(self) -> int:
        return self.log.read_text().count("began")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.all.close()
    made.reactor.close()


def test_one_that_ends_while_warming_up_is_tried_a_few_times(place: Place) -> None:
    place.runs("")
    place.find()
    place.turn_until(lambda: place.all.why_cold(place.key).startswith("the nursery ended"), "off")
    assert "while warming up" in place.all.why_cold(place.key)
    assert place.began() == nurseries.TRIES
    place.find()
    assert place.began() == nurseries.TRIES


def test_one_that_is_killed_whenever_it_is_warm_is_done_without(place: Place) -> None:
    """As by a kernel that is short of memory."""
    place.runs(WARM)
    for _ in range(nurseries.TRIES):
        place.find()
        place.turn_until(lambda: not _lives(place), "it has ended")
    assert "before a worker came from it" in place.all.why_cold(place.key)
    assert place.find().state == "off"
    assert place.began() == nurseries.TRIES


def test_one_that_was_of_use_is_always_replaced(place: Place) -> None:
    place.runs(WARM + "link.recv(1)")
    for _ in range(nurseries.TRIES + 1):
        place.find()
        place.turn_until(lambda: place.find().warm, "it is warm")
        place.all.born(place.key)
        place.find().process.kill()
        place.turn_until(lambda: not _lives(place), "it has ended")
    assert place.find().state == "warming up"


def test_one_that_hangs_while_it_imports_is_not_awaited_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nurseries, "LONGEST_WARM_UP", 0.1)
    place.runs("import time; time.sleep(1000)")
    process = place.find().process
    place.turn_until(lambda: place.find().state == "off", "it is given up")
    assert "not warm after" in place.all.why_cold(place.key)
    process.returncode = None
    process.wait()


def test_one_that_has_come_to_nothing_may_try_again_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.runs("")
    place.find()
    place.turn_until(lambda: place.all.why_cold(place.key).startswith("the nursery ended"), "off")
    monkeypatch.setattr(nurseries, "REST", 0.0)
    place.runs(WARM + "link.recv(1)")
    place.turn_until(lambda: place.find().warm, "it is warm")
    place.all.born(place.key)


def _lives(place: Place) -> bool:
    return any(nursery.state != "off" for nursery in place.all.all())


def test_more_than_there_is_place_for_do_not_end_each_other(place: Place) -> None:
    """Programs of four environments that come at once: each would wait for a nursery for ever."""
    place.runs(WARM + "link.recv(1)")
    keys = [NurseryKey(str(place.python), (("HOME", str(n)),)) for n in range(nurseries.MOST + 1)]
    made = [place.all.find(key, plenty) for key in keys]
    assert made[-1] is None
    assert place.all.why_cold(keys[-1]) == "other environments are being loaded"
    first, *_ = made
    assert first is not None
    place.turn_until(lambda: first.warm, "it is warm")
    assert place.all.find(keys[-1], plenty) is None  # Who has waited for the first comes first.
    place.all.born(keys[0])
    assert place.all.find(keys[-1], plenty) is not None
    assert [place.all.find(key, plenty) for key in keys[1:-1]] == made[1:-1]


def test_one_for_which_nobody_waits_any_more_makes_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nurseries, "UNWANTED", 0.0)
    place.runs(WARM + "link.recv(1)")
    keys = [NurseryKey(str(place.python), (("HOME", str(n)),)) for n in range(nurseries.MOST + 1)]
    first = place.all.find(keys[0], plenty)
    assert first is not None
    place.turn_until(lambda: first.warm, "it is warm")
    others = [place.all.find(key, plenty) for key in keys[1:]]
    assert place.all.pid(keys[0]) == 0
    assert None not in others


def test_what_imports_of_a_parent_have_set_brings_no_nursery_of_its_own() -> None:
    """Also before any nursery has told what its imports set."""
    inherited = {"HDF5_PLUGIN_PATH": "disable", "KMP_INIT_AT_FORK": "FALSE", "TF2_BEHAVIOR": "1"}
    assert NurseryKey.of(sys.executable, inherited) == NurseryKey.of(sys.executable, {})


def test_one_is_begun_only_where_there_is_room_for_it(place: Place) -> None:
    place.runs(WARM + "link.recv(1)")
    assert place.all.pid(place.key) == 0
    assert place.all.find(place.key, lambda: nurseries.USUAL - 1) is None
    assert place.all.pid(place.key) is None
    assert place.all.why_cold(place.key) == "there was no room for its nursery"
    assert not place.all.reconsider(nurseries.USUAL - 1)
    assert place.all.reconsider(nurseries.USUAL)
    assert not place.all.reconsider(nurseries.USUAL)  # Whoever waits is asked once.
    assert place.all.standing() == ()
    loading = place.find()
    (counted,) = place.all.standing()
    assert (counted.holds, counted.idle) == (nurseries.USUAL, False)
    place.turn_until(lambda: loading.warm, "it is warm")
    assert sum(one.holds for one in place.all.standing()) < nurseries.USUAL


@pytest.mark.parametrize("own", [{}, {"JE_ARROW_MALLOC_CONF": "narenas:1"}])
def test_the_allocator_of_pyarrow_starts_no_thread_unless_its_user_has_set_it_up(
    place: Place, own: dict[str, str]
) -> None:
    """Keras imports pandas, which imports pyarrow where it is installed; a second thread, and
    no program could be forked."""
    place.runs("import os\nprint('arrow:', os.environ['JE_ARROW_MALLOC_CONF'], flush=True)")
    place.all.find(NurseryKey.of(str(place.python), own), plenty)
    wait_for(lambda: "arrow:" in place.log.read_text(), "it has begun")
    said = own.get("JE_ARROW_MALLOC_CONF", "background_thread:false")
    assert f"arrow: {said}" in place.log.read_text()
