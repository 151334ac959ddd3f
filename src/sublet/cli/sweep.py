"""`sublet sweep`: a program with many parameters, as leased jobs, in one table."""

import math
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sublet.cli import program_options
from sublet.cli.completion import complete_files
from sublet.cli.terminal_text import print_json, say, tell
from sublet.errors import BadRequest
from sublet.units import parse_seconds

if TYPE_CHECKING:
    from sublet.sweeps.program_sweep import Request
    from sublet.sweeps.records import Sweep, Trial

_INTEGERS = re.compile(r"(\d+)-(\d+)")
_RANGE = re.compile(r"(log:)?([-+.\deE]+)\.\.([-+.\deE]+)")
_EXAMPLE = "Write --grid lr=0.1,0.01, --grid seed=0-4, or --grid lr=log:1e-4..1e-1."
_KEYS = {
    "program": list,
    "space": dict,
    "metric": str,
    "mode": str,
    "search": str,
    "trials": int,
    "budget": str,
    "metrics": str,
    "seed": int,
    "at-once": int,
    "directory": str,
    "memory": str,
    "device": str,
    "cpus": int,
    "time": str,
    "retries": int,
    "python": str,
}
"""What a file may say, and what kind of value that is."""


_BEHIND = frozenset(
    [
        "-g",
        "--grid",
        "--metric",
        "--mode",
        "--search",
        "--trials",
        "--budget",
        "--metrics",
        "--at-once",
        "--directory",
        "--json",
    ]
)
"""Options that may stand behind the program, too: few programs have any of them."""


class SweepCommand(program_options.ProgramCommand):
    """A command some of whose options are found behind the program, up to a `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, words = [], list(args)
        place = self._program(words)
        while place < len(words) and words[place] != "--":
            name, equals, _ = words[place].partition("=")
            if name not in _BEHIND:
                place += 1
                continue
            count = 1 if equals or name == "--json" else 2
            ours += words[place : place + count]
            del words[place : place + count]
        return super().parse_args(ctx, [*ours, *words])

    def _program(self, words: list[str]) -> int:
        """Where the program begins."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        with_value = {name for one in options if not one.is_flag for name in one.opts}
        place = 0
        while place < len(words) and words[place].startswith("-") and words[place] != "-m":
            place += 2 if words[place] in with_value else 1
        return place


@click.command("sweep", cls=SweepCommand, context_settings=program_options.CONTEXT)
@click.option(
    "-g",
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="A parameter: values 0.1,0.01; integers 0-4; a range 1..9 or log:1e-4..1e-1 to draw from.",
)
@click.option(
    "--metric", default="val_loss", show_default=True, metavar="NAME", help="The metric to rank by."
)
@click.option("--mode", type=click.Choice(["min", "max"]), help="Default: by the metric's name.")
@click.option(
    "--search",
    type=click.Choice(["grid", "random", "halving", "optuna"]),
    default="grid",
    show_default=True,
    help="grid: every combination; random: some of them; halving: all, and losers stop early; "
    "optuna: Optuna's TPE.",
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Run at most N trials.")
@click.option(
    "--budget",
    metavar="NAME=MOST",
    help="The argument that says how long to train, and its largest value, such as epochs=27; "
    "halving starts with less.",
)
@click.option(
    "--metrics",
    metavar="FILE",
    help="Read metrics from this file in the trial's directory {dir}: JSON, CSV, or TensorBoard's "
    "event files. Default: from lines that the program prints, such as val_loss: 0.12.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For random choices.")
@click.option(
    "--at-once",
    type=click.IntRange(1),
    metavar="N",
    help="Run at most N at a time. Default: what fits.",
)
@click.option(
    "-d",
    "--directory",
    metavar="DIR",
    shell_complete=complete_files,
    help="Keep the sweep here; the same command continues it.",
)
@program_options.memory
@program_options.device
@click.option("--cpus", type=click.IntRange(1), metavar="N", help="Use at most N cores for each.")
@click.option("-t", "--time", metavar="SPAN", help="Time limit of each run, such as 45min.")
@click.option(
    "--retries", type=click.IntRange(0), default=0, metavar="N", help="Retry a run up to N times."
)
@program_options.python
@program_options.cold
@click.option("-q", "--quiet", is_flag=True, help="Print the table alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@program_options.words
def command(words: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> int:
    """Run PROGRAM with many parameters, each run as a leased job, and rank the runs by a metric.

    Each parameter is added to the arguments as --lr 0.1; write {lr} to put it elsewhere. {dir} is
    the trial's own directory, {trial} its number. PROGRAM may be a file with all of this:
    sweep.toml.

    \b
    sublet sweep train.py --epochs 5 --grid lr=0.1,0.01 --grid seed=0-4
    sublet sweep --grid lr=log:1e-4..1e-1 --search random --trials 20 train.py
    sublet sweep --grid lr=0.1,0.01 --metrics log.csv train.py --csv {dir}/log.csv
    """
    from sublet.sweeps.program_sweep import ProgramSweep

    if len(words) == 1 and words[0].endswith(".toml"):
        request = _from_file(Path(words[0]), options)
    else:
        request = _request({**options, "program": list(words), "space": _space(options["grid"])})
    sweep = ProgramSweep(request)
    try:
        ended = sweep.run(not quiet, tell)
    except KeyboardInterrupt:
        cancelled = sweep.cancel()
        tell(_stopped(cancelled, request.directory))
        raise click.Abort from None
    if as_json:
        print_json(_document(ended), indent=2)
    else:
        _show(ended)
    return int(any(trial.state == "failed" for trial in ended.trials))


def _space(grids: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for written in grids:
        name, equals, values = written.partition("=")
        if not equals or not name or not values:
            raise BadRequest(f"--grid {written!r} is not NAME=VALUES.", _EXAMPLE)
        if name in found:
            raise BadRequest(f"--grid {name} is given twice.", "Give all of its values at once.")
        found[name] = values_of(values)
    if not found:
        raise BadRequest("There is nothing to try.", _EXAMPLE)
    return found


def values_of(text: str) -> Any:
    """The values that a word names: `0.1,0.01`, `0-4`, `1..9`, `log:1e-4..1e-1`."""
    from sublet.sweeps.space import loguniform, randint, uniform

    if (span := _INTEGERS.fullmatch(text)) is not None:
        first, last = int(span[1]), int(span[2])
        if last < first or last - first >= 100_000:
            raise BadRequest(f"{text!r} is no range of integers.", _EXAMPLE)
        return range(first, last + 1)
    if (span := _RANGE.fullmatch(text)) is not None:
        low, high = _value(span[2]), _value(span[3])
        if isinstance(low, str) or isinstance(high, str):
            raise BadRequest(f"{text!r} is no range of numbers.", _EXAMPLE)
        if span[1]:
            return loguniform(low, high)
        if isinstance(low, int) and isinstance(high, int):
            return randint(low, high)
        return uniform(low, high)
    return [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


def _request(options: Mapping[str, Any]) -> "Request":
    from sublet.sweeps.program_sweep import Request

    jobs = {name: options[name] for name in ("device", "cpus", "python") if options.get(name)}
    if options.get("time"):
        jobs["time"] = parse_seconds(options["time"])
    jobs["retries"] = options.get("retries") or 0
    jobs["cold"] = bool(options.get("cold"))
    return Request(
        words=tuple(options["program"]),
        space=options["space"],
        metric=options.get("metric") or "val_loss",
        mode=options.get("mode"),
        search=options.get("search") or "grid",
        trials=options.get("trials"),
        budget=options.get("budget"),
        metrics=options.get("metrics"),
        seed=options.get("seed") or 0,
        at_once=options.get("at_once") or 0,
        directory=options.get("directory"),
        memory=options.get("memory") or "auto",
        options=jobs,
    )


def _from_file(path: Path, typed: Mapping[str, Any]) -> "Request":
    """The request of a file. What is typed comes before what it says; parameters add to its."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.", "Name a file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"{path} is not TOML: {wrong}.", "Correct it.") from None
    for name, value in document.items():
        kind = _KEYS.get(name.replace("_", "-"))
        if kind is None:
            raise BadRequest(
                f"{path}: there is no setting {name!r}.", f"There are: {', '.join(_KEYS)}."
            )
        if isinstance(value, bool) or not isinstance(value, (kind, str) if kind is list else kind):
            raise BadRequest(f"{path}: {name} = {value!r} is no {kind.__name__}.", "Correct it.")
    said = {name.replace("-", "_"): value for name, value in document.items()}
    if isinstance(said.get("program"), str):
        said["program"] = said["program"].split()
    if not said.get("program"):
        raise BadRequest(f"{path} names no program.", 'Add program = ["train.py"].')
    said["space"] = {
        name: values_of(value) if isinstance(value, str) else value
        for name, value in said.get("space", {}).items()
    }
    context = click.get_current_context()
    given = {
        name: value
        for name, value in typed.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if given.pop("grid", None):
        said["space"] |= _space(typed["grid"])
    return _request(said | given)


def _show(sweep: "Sweep") -> None:
    from sublet.sweeps import table
    from sublet.views.table import width_of

    for line in table.lines(sweep, width_of(sys.stdout)):
        say(line.rstrip())


def _document(sweep: "Sweep") -> dict[str, Any]:
    best = sweep.best
    settings = sweep.settings
    return {
        "directory": sweep.directory,
        "program": settings.subject,
        "metric": settings.metric,
        "mode": settings.mode,
        "search": settings.search,
        "best": None if best is None else best.number,
        "trials": [_row(trial) for trial in sweep.trials],
    }


def _row(trial: "Trial") -> dict[str, Any]:
    return {
        "trial": trial.number,
        "params": trial.params,
        "state": trial.state,
        "value": trial.value,
        "curves": trial.curves,
        "job": trial.job,
        "error": trial.error,
    }


def _stopped(cancelled: list[int], directory: str | None) -> str:
    jobs = f"stopped; {len(cancelled)} jobs were cancelled" if cancelled else "stopped"
    if directory is None:
        return jobs
    return f"{jobs}. The same command goes on with the others of {directory}."
