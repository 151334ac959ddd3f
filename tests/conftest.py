"""Homes for the tests that need real processes."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings

from standin import Gpu, Machine
from support.sandbox import Sandbox

pytest_plugins = ["support.flaky"]

# A machine under load is slow, and that is no failure. Where a run decides about a change (CI is
# set), the examples are the same each time; everywhere else they are new ones.
settings.register_profile("sublet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("sublet")

# A shell starts what runs in its background with the first two ignored, and nohup does so with the
# third. Children inherit that: then no Ctrl-C would reach a program.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# What a test says to the home of whoever runs it would depend on what is in there, and stay there.
os.environ["SUBLET_HOME"] = "/dev/null/a test names its home"
os.environ["SUBLET_CONFIG"] = os.devnull

_REAL = frozenset({"process", "journeys", "faults"})
"""Folders in which every test has real processes."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m "not slow"` does not import files that are slow as a whole: some load TensorFlow."""
    if config.option.markexpr != "not slow":
        return None
    if collection_path.is_dir():
        return collection_path.name in _REAL or None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text("latin-1") or None


@pytest.hookimpl(tryfirst=True)  # Before pytest chooses by markers.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "real_processes" in names or _REAL.intersection(item.path.parts):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def real_processes() -> None:
    """Asked for by fixtures that start a broker, keepers or TensorFlow: their tests are slow."""


@contextmanager
def _home() -> Iterator[Path]:
    """A state directory to be. Its path is short: the sockets in it have 108 bytes for theirs, and
    pytest's directories take most of those."""
    with TemporaryDirectory(prefix="sublet-", ignore_cleanup_errors=True) as root:
        yield Path(root) / "home"


@pytest.fixture(scope="session")
def shared_sandbox(
    real_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """One warm home for all tests that leave it as they found it."""
    work = tmp_path_factory.mktemp("shared") / "work"
    with _home() as home, closing(Sandbox(home, work, SUBLET_CPU_MEMORY="4GiB")) as sandbox:
        sandbox.warm()
        yield sandbox


@pytest.fixture
def sandbox(shared_sandbox: Sandbox, tmp_path: Path) -> Sandbox:
    """The shared home with a working directory of the test's own."""
    return shared_sandbox.with_work(tmp_path / "work")


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def shared_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """One warm home on the CPU, and one on a stand-in card of the same size: for promises about
    memory, which hold on both. On the card the driver may refuse nothing."""
    if request.param == "cpu":
        yield request.getfixturevalue("shared_sandbox")
        return
    request.getfixturevalue("real_processes")
    root = tmp_path_factory.mktemp("card")
    machine = small_card(root / "machine", 4 << 30)
    with _home() as home, closing(Sandbox(home, root / "work", **machine.environ)) as sandbox:
        sandbox.device = "gpu0"
        sandbox.warm()
        yield sandbox
    assert machine.refusals() == []


@pytest.fixture
def either_sandbox(shared_home: Sandbox, tmp_path: Path) -> Sandbox:
    """The shared home on either device with a working directory of the test's own."""
    return shared_home.with_work(tmp_path / "work")


@pytest.fixture(params=["cpu", "gpu"])
def new_either_sandbox(
    request: pytest.FixtureRequest, new_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> Iterator[Callable[[int, int], Sandbox]]:
    """Homes of the test's own on either device, which has so many MiB: more on a card, on which
    each process is charged with 1050 MiB at first. There the driver may refuse nothing."""
    machines: list[Machine] = []

    def make(cpu: int, gpu: int) -> Sandbox:
        if request.param == "cpu":
            return new_sandbox(SUBLET_CPU_MEMORY=f"{cpu}MiB")
        machines.append(small_card(tmp_path / f"card{len(machines)}", gpu << 20))
        sandbox = new_sandbox(**machines[-1].environ)
        sandbox.device = "gpu0"
        return sandbox

    yield make
    for machine in machines:
        assert machine.refusals() == []


def small_card(directory: Path, total: int) -> Machine:
    """A machine with one card on which kernels do nothing. For one of its kind TensorFlow's table
    says that a process costs 1050 MiB."""
    return Machine(directory, Gpu(uuid="GPU-a", total=total, compute=(7, 0)), computes=False)


@pytest.fixture
def new_sandbox(real_processes: None, tmp_path: Path) -> Iterator[Callable[..., Sandbox]]:
    """Homes of the test's own, for tests that break them."""
    numbers = itertools.count()
    with ExitStack() as made:

        def make(**environ: str) -> Sandbox:
            root = tmp_path / f"sandbox{next(numbers)}"
            root.mkdir()
            home = made.enter_context(_home())
            return made.enter_context(closing(Sandbox(home, root / "work", **environ)))

        yield make


@pytest.fixture
def new_machine(tmp_path: Path) -> Callable[..., Machine]:
    """Machines with stand-in cards, each with a ledger and a log of its own. Their `environ` is for
    a sandbox, or for any child."""
    numbers = itertools.count()

    def make(*gpus: Gpu, **facts: Any) -> Machine:
        return Machine(tmp_path / f"machine{next(numbers)}", *gpus, **facts)

    return make
