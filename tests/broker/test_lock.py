"""One broker per home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.broker.lock import only_broker
from sublet.errors import WorldError
from sublet.home import Home

HOLD = (
    "import sys, signal\n"
    "from pathlib import Path\n"
    "from sublet.broker.lock import only_broker\n"
    "from sublet.home import Home\n"
    "with only_broker(Home(Path(sys.argv[1]))):\n"
    "    print('held', flush=True)\n"
    "    signal.pause()\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make()
    return made


def test_a_second_broker_is_refused_with_the_owners_number_until_the_owner_is_gone(
    home: Home,
) -> None:
    command = [sys.executable, "-c", HOLD, str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(WorldError, match=f"process {owner.pid}\\."), only_broker(home):
            pass
        owner.kill()
    # A lock that a kill left behind would keep everybody out.
    with only_broker(home):
        assert home.lock.read_text() == str(os.getpid())
    # Nor may anything be left of a number that was longer.
    home.lock.write_text("9" * 20)
    with only_broker(home):
        assert home.lock.read_text() == str(os.getpid())


def test_only_its_owner_may_read_the_lock(home: Home) -> None:
    with only_broker(home):
        assert home.lock.stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_used_is_the_worlds_fault(home: Home) -> None:
    home.lock.mkdir()
    with pytest.raises(WorldError, match="cannot be used") as refusal, only_broker(home):
        pass
    assert "SUBLET_HOME" in refusal.value.hint
