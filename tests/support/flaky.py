"""A test that fails is run once more, alone, after the others.

If it passes then, the run does: it ends with a line that names the test as flaky, so that the test
is mended and a day's work is not thrown away for it. Loaded by the root conftest; asked for with
`--rerun-failed`.
"""

import subprocess
import sys

import pytest

MOST = 10
"""More failures than this are no accident."""

_failed: dict[str, None] = {}
_flaky: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rerun-failed",
        action="store_true",
        help=f"run failed tests once more, each alone, if there are at most {MOST}",
    )
    parser.addoption(
        "--name-flaky",
        metavar="FILE",
        help="write the lines that name flaky tests to the end of this file, too",
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed[report.nodeid] = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    wanted = config.getoption("--rerun-failed") and not hasattr(config, "workerinput")
    # Any other status is not about tests that failed: the run was broken off, or never began.
    if not wanted or exitstatus != pytest.ExitCode.TESTS_FAILED or len(_failed) > MOST:
        return
    for name in _failed:
        print(f"\n\nonce more, alone: {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", name]
        if subprocess.run(command, cwd=config.rootpath, check=False).returncode == 0:
            _flaky.append(name)
    if len(_flaky) == len(_failed) > 0:
        session.exitstatus = pytest.ExitCode.OK


def pytest_unconfigure(config: pytest.Config) -> None:
    # After all else: these are the last lines of the run.
    lines = [f"FLAKY {name}: failed among the others, passed alone" for name in _flaky]
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    if lines and (path := config.getoption("--name-flaky")):
        with open(path, "a", encoding="utf-8") as file:
            print(*lines, sep="\n", file=file)
