"""A sweep over runs of a program: `sublet sweep train.py`, from its request to its end."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sublet.client.program import read_command
from sublet.errors import BadRequest, SubletError
from sublet.home import Home
from sublet.sweeps import driver
from sublet.sweeps.opening import forget_if_nothing_ended, opened
from sublet.sweeps.progress import Progress
from sublet.sweeps.records import Mode, Settings, Sweep
from sublet.sweeps.scripts import ProgramTrials, Scripts
from sublet.sweeps.search import choose
from sublet.sweeps.space import Space


@dataclass(frozen=True)
class Request:
    """What was asked for, from a command line or a file."""

    words: tuple[str, ...]
    space: Mapping[str, Any]
    metric: str = "val_loss"
    mode: Mode | None = None
    search: str = "grid"
    trials: int | None = None
    budget: str | None = None
    """`epochs=27`: the parameter that tells a program how long to train, and the most of it."""
    metrics: str | None = None
    """A file or directory in which a trial leaves its metrics."""
    seed: int = 0
    at_once: int = 0
    directory: str | None = None
    memory: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    """Of the jobs: device, cpus, time, retries and so on."""


class ProgramSweep:
    """One sweep; `run` returns when nothing is left to try."""

    def __init__(self, request: Request) -> None:
        """Raises BadRequest if it cannot be run; nothing was changed then."""
        self.request = request
        if not request.words:
            raise BadRequest("Which program?", "sublet sweep --grid lr=0.1,0.01 train.py")
        found = read_command(list(request.words), request.options.get("python"))
        self._arguments = tuple(os.fsdecode(word) for word in found["args"])
        self._budget, self._epochs = _budget(request.budget)
        space = Space.read(request.space)
        if self._budget in space.domains:
            raise BadRequest(
                f"{self._budget} is the budget and a parameter.", "Leave one of them out."
            )
        self._mode: Mode = request.mode or choose.mode_of(request.metric)
        if request.search == "pbt":
            raise BadRequest(
                "Programs cannot take over each other's weights.",
                "Use halving, or sublet.sweep in Python.",
            )
        if request.search == "halving" and self._budget is None:
            raise BadRequest(
                "Halving has to tell the program how long to train.",
                "Name its argument, and the most: --budget epochs=27.",
            )
        search: Any = request.search
        if search == "optuna":
            search = _sampler(request.seed)
        self._search = choose.choose(
            search, space, self._epochs, self._mode, request.trials, request.seed
        )
        self._space = space
        self._runner: Scripts | None = None

    def run(self, progress: bool = True, say: Callable[[str], None] | None = None) -> Sweep:
        """Run it to its end; a KeyboardInterrupt leaves `cancel` to be called."""
        request = self.request
        name = os.path.basename(request.words[0]) if request.words[0] != "-m" else request.words[1]
        place = None if request.directory is None else Path(request.directory).absolute()
        with opened(place, name, self._settings(name)) as journal:
            program = ProgramTrials(
                tuple(request.words),
                self._arguments,
                request.metric,
                self._budget,
                request.metrics,
                request.memory,
                request.at_once,
                request.options,
            )
            runner = Scripts(program, journal.directory, Home.find().logs, self._epochs)
            self._runner = runner
            watcher = Progress(self._search.work, progress, say, lambda: runner.reason)
            ended = None
            try:
                ended = driver.lead(journal, self._search, runner, watcher)
            except SubletError:
                forget_if_nothing_ended(journal)
                raise
            finally:
                watcher.close(ended)
            return ended

    def cancel(self) -> list[int]:
        """Cancel the jobs that have not ended; their numbers."""
        return [] if self._runner is None else self._runner.cancel()

    def _settings(self, name: str) -> Settings:
        request = self.request
        return Settings(
            kind="script",
            subject=name,
            space=self._space.plain(),
            search=self._search.name,
            metric=request.metric,
            mode=self._mode,
            epochs=self._epochs,
            trials=request.trials or 0,
            seed=request.seed,
            options={
                "arguments": list(self._arguments),
                "budget": request.budget,
                "metrics": request.metrics,
            },
        )


def _budget(written: str | None) -> tuple[str | None, int]:
    if written is None:
        return None, 1
    name, _, most = written.partition("=")
    if not name or not most.isdecimal() or not int(most):
        raise BadRequest(
            f"--budget {written!r} is not a name and a number.", "Such as --budget epochs=27."
        )
    return name, int(most)


def _sampler(seed: int) -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise BadRequest("Optuna is not installed.", "pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.samplers.TPESampler(seed=seed)
