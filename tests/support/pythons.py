"""Runs the tests on every Python that README names.

All tests run on the Python that this is started with. Those with the mark `every_python`, which
touch what differs between interpreters (forks, signals, frames, imports), also run on the others,
as far as they are on the PATH. The last lines say what ran where, and which tests were flaky.

    PYTHONPATH=tests python -m support.pythons [options of pytest]
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Returns the exit code: 0 if all that ran has passed."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: _interpreter(version) for version in VERSIONS if version != own}
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as threads:
        flaky = Path(directory) / "flaky"
        flaky.touch()
        makes = {
            version: threads.submit(_make_environment, version, python)
            for version, python in found.items()
            if python
        }
        results = {own: _told("all tests", _pytest(sys.executable, flaky).returncode)}
        others = {
            version: threads.submit(_test_other, version, make, flaky)
            for version, make in makes.items()
        }
        for version in found:
            if version not in others:
                results[version] = f"NOT RUN: no python{version} on the PATH runs"
            else:
                results[version], output = others[version].result()
                print(output, flush=True)
        print()
        for version in sorted(results):
            print(f"Python {version}: {results[version]}")
        print(flaky.read_text(), end="", flush=True)
    return int(any(result.startswith("FAILED") for result in results.values()))


def marked() -> list[Path]:
    """The files with tests for every Python. The others may need packages that are not there."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if "@pytest.mark.every_python" in path.read_text()]


def _interpreter(version: str) -> str:
    """The path of this Python; empty if there is none that runs."""
    show = "import sys; print(sys.executable)"
    # pyenv puts a name on the PATH for every version, and runs those that it is told to.
    for environ in (os.environ, {**os.environ, "PYENV_VERSION": version}):
        try:
            command = [f"python{version}", "-c", show]
            ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        if ran.returncode == 0:
            return ran.stdout.strip()
    return ""


def _make_environment(version: str, python: str) -> "subprocess.CompletedProcess[str]":
    """Make a virtual environment, beside the tests: most of that is waiting."""
    venv = f".venv-{version}"
    words = [f"VENV={venv}", f"PYTHON={python}", "EXTRA=test", f"{venv}/.installed"]
    return _run(["make", *words], captured=True)


def _test_other(
    version: str, make: "Future[subprocess.CompletedProcess[str]]", flaky: Path
) -> tuple[str, str]:
    """How the tests that depend on this Python ended, and what they wrote."""
    made = make.result()
    if made.returncode != 0:
        return "FAILED: the packages in constraints.txt cannot be installed", made.stdout
    python, chosen = ROOT / f".venv-{version}/bin/python", ("-m", "every_python")
    ran = _pytest(str(python), flaky, *chosen, *map(str, marked()), captured=True)
    return _told("tests that depend on it", ran.returncode), ran.stdout


def _pytest(
    python: str, flaky: Path, *tests: str, captured: bool = False
) -> "subprocess.CompletedProcess[str]":
    # In one word: pytest would look for its settings beside a path that stands alone.
    command = [python, "-m", "pytest", *sys.argv[1:], f"--name-flaky={flaky}", *tests]
    return _run(command, captured)


def _run(command: list[str], captured: bool) -> "subprocess.CompletedProcess[str]":
    stream = subprocess.PIPE if captured else None
    return subprocess.run(
        command,
        cwd=ROOT,
        env=_environ(),
        stdout=stream,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        check=False,
    )


def _environ() -> dict[str, str]:
    """Ours, less what this was started with: tests find `support` by the settings of pytest."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _told(what: str, code: int) -> str:
    return f"{what} passed" if code == 0 else f"FAILED: {what}"


if __name__ == "__main__":
    sys.exit(main())
