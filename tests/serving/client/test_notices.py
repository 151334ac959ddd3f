"""Why a version is not served is known to every program of the user while its server lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.channel.codes import Code
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.client import notices
from sublet.serving.client.notices import Notice, Notices


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SUBLET_HOME", str(tmp_path))
    return tmp_path


def catalogue(*versions: Version) -> Catalogue:
    return Catalogue({"m": Model("m", {one.number: one for one in versions})})


BAD = Version("m", 1, State.END, Code.UNAVAILABLE, "it ends engines")
WORSE = Version("m", 2, State.END, Code.DATA_LOSS, "it is damaged")
GOOD = Version("m", 3, State.AVAILABLE)


def test_what_is_not_served_is_told_with_its_reason_and_what_is_served_is_not() -> None:
    mine = Notices()
    mine.tell(catalogue(BAD, GOOD))
    assert notices.read() == [Notice("m", 1, Code.UNAVAILABLE, "it ends engines")]
    mine.close()


def test_who_names_no_version_hears_of_the_newest() -> None:
    mine = Notices()
    mine.tell(catalogue(BAD, WORSE))
    newest, named = notices.refusal("m", None), notices.refusal("m", 1)
    assert newest is not None
    assert (newest.code, newest.message) == (Code.DATA_LOSS, "it is damaged")
    assert named is not None
    assert named.code == Code.UNAVAILABLE
    assert notices.refusal("other", None) is None
    mine.close()


def test_a_version_that_is_served_again_is_not_told_of_and_nothing_is_left(home: Path) -> None:
    mine = Notices()
    mine.tell(catalogue(BAD))
    mine.tell(catalogue(GOOD))
    assert notices.read() == []
    mine.tell(catalogue(WORSE))
    assert [one.version for one in notices.read()] == [2]
    mine.close()
    assert os.listdir(home / "engines") == []


def test_what_a_killed_server_said_is_forgotten(home: Path) -> None:
    program = (
        "import os, signal\n"
        "from sublet.channel.codes import Code\n"
        "from sublet.serving.catalogue import Catalogue, Model, State, Version\n"
        "from sublet.serving.client.notices import Notices\n"
        "one = Version('m', 1, State.END, Code.INTERNAL, 'gone')\n"
        "Notices().tell(Catalogue({'m': Model('m', {1: one})}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert len(os.listdir(home / "engines")) == 1
    assert notices.read() == []
    assert os.listdir(home / "engines") == []


def test_a_file_that_is_no_notice_harms_nobody(home: Path) -> None:
    mine = Notices()
    mine.tell(catalogue(BAD))
    (file,) = (home / "engines").iterdir()
    file.write_bytes(b"{")
    assert notices.read() == []
    mine.close()
