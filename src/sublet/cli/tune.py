"""`sublet tune`: which batches a model answers fastest with, measured."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sublet.cli import load_options
from sublet.cli.completion import complete_files
from sublet.cli.terminal_text import print_json, say
from sublet.errors import BadRequest
from sublet.text import plain
from sublet.units import parse_seconds

if TYPE_CHECKING:
    from sublet.serving.client.engine import Engine
    from sublet.tools.loadtest.figures import Figures
    from sublet.tools.loadtest.search import Goal, Trial
    from sublet.tools.loadtest.setting import Setting
    from sublet.tools.loadtest.subject import LocalModel, Wanted
    from sublet.tools.loadtest.trials import TrialVerdict

_WIDTH = 28


@click.command("tune")
@click.argument("model", shell_complete=complete_files)
@click.option(
    "--target",
    metavar="SPAN",
    help="Keep p99 latency below this, such as 20ms. Default: only maximize throughput.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(2, 4096),
    default=32,
    show_default=True,
    metavar="N",
    help="How many calls at once to tune for.",
)
@click.option(
    "--time", default="4s", show_default=True, metavar="SPAN", help="Time per trial, at most."
)
@load_options.about_calls
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File for the result. Default: batching_params.pbtxt beside the model.",
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    target: str | None,
    concurrency: int,
    time: str,
    rows: int | None,
    shape: tuple[str, ...],
    pause: str | None,
    data: Path | None,
    signature: str | None,
    version: int | None,
    memory: str | None,
    device: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Find the fastest batching settings for MODEL, and write them to a file for `sublet serve`.

    MODEL is a SavedModel, a .keras file or a directory of versions; it gets its own engine.
    The best setting is compared with the defaults in alternating rounds. If the difference is
    within noise, nothing is suggested and nothing is written.

    \b
    sublet tune models/resnet --target 20ms
    sublet serve models/ --enable_per_model_batching_parameters
    """
    from sublet.serving import extra

    extra.require()  # The others import what it looks for.
    from sublet.tools.loadtest import setting
    from sublet.tools.loadtest.search import Goal
    from sublet.tools.loadtest.subject import locate

    most = load_options.seconds("--time", time, 0.2, 3600)
    goal = Goal(None if target is None else parse_seconds(target))
    if goal.target == 0:
        raise BadRequest("--target 0 cannot be met.", "Write a span such as 20ms.")
    asked = load_options.wanted(rows, shape, data, signature)
    local = locate(model, version)
    if local is None:
        raise BadRequest(
            f"{model}: there is no such file or directory.",
            "Name a model on the disk: what is served now is not changed to be measured.",
        )
    path = output if output is not None else local.path / setting.FILE
    if output is None and local.path.is_file():
        raise BadRequest(
            f"{local.path} is a file, so nothing can be written beside it for the server.",
            "Say where to: --output batching.config.",
        )
    setting.check(path, force)
    tuning = _Tuning(local, asked, goal, concurrency, most, load_options.pause(pause), as_json)
    engine = load_options.engine(local, memory, device, {})
    try:
        best, verdict = load_options.run(tuning.run(engine), exact=True)
    except KeyboardInterrupt:
        say("sublet: stopped; nothing was written", err=True)
        raise click.Abort from None
    finally:
        engine.close()
    if verdict is not None and verdict.suggested:
        notes = tuning.notes(verdict)
        setting.write(path, best.text(notes), force)
    tuning.report(best, verdict, path)
    return 0


class _Tuning:
    """Search, comparison, and what is shown of them."""

    def __init__(
        self,
        local: "LocalModel",
        asked: "Wanted",
        goal: "Goal",
        concurrency: int,
        most: float,
        pause: float | None,
        as_json: bool,
    ) -> None:
        self._local, self._asked, self._goal = local, asked, goal
        self._concurrency, self._most, self._pause = concurrency, most, pause
        self._as_json = as_json
        self._progress = load_options.Progress()
        self._about = ""
        self._rows = 1
        self._trials: list[Trial] = []

    async def run(self, engine: "Engine") -> "tuple[Setting, TrialVerdict | None]":
        """The best setting, and what its comparison with the defaults says."""
        from sublet.tools.loadtest import subject
        from sublet.tools.loadtest.load import Load
        from sublet.tools.loadtest.search import Search
        from sublet.tools.loadtest.setting import Setting
        from sublet.tools.loadtest.tables import span
        from sublet.tools.loadtest.trials import Trials, judge

        found = await subject.own(engine, self._local, self._asked)
        load = Load(found.transport, self._progress.window)
        trials = Trials(engine, self._local, load, self._concurrency, self._most)
        self._about, self._rows = found.about, found.transport.rows

        async def measure(setting: Setting) -> "Figures":
            self._progress.title = str(setting)
            return await trials.measure(setting)

        try:
            if not found.batchable:
                raise BadRequest(
                    f"The signature {found.signature} has no batch dimension.",
                    "The first dimension of each input and output has to be free. There is\n"
                    "nothing to tune.",
                )
            self._progress.show("the first calls …")
            took = await load.check(self._most)
            # Real callers do something with an answer, and do not all call at the same moment.
            self._pause = load.pause = took if self._pause is None else self._pause
            sent = ", ".join(f"{name} {what}" for name, what in found.inputs.items())
            self._say(f"{plain(found.about)}\n{plain(f'{found.signature}: {sent}')}")
            self._say(f"{self._concurrency} callers, who pause for {span(load.pause)} on average")
            self._say("Each setting is measured in turns with the best so far (best then).\n")
            self._say(
                f"{'batches':<{_WIDTH}}{'req/s':>8}{'p50':>9}{'p99':>9}{'batch':>7}"
                f"{'best then':>11}{'change':>8}"
            )
            search = Search(measure, self._goal, self._concurrency * self._rows, self._show)
            self._trials = search.trials
            best = await search.run()
            if best == Setting():
                return best, None
            self._progress.title = "compared with the defaults"
            return best, judge(await trials.compare(best), self._goal)
        finally:
            self._progress.clear()
            await found.transport.close()

    def notes(self, verdict: "TrialVerdict") -> list[str]:
        from sublet.tools.loadtest.tables import span

        return [
            f"Measured by sublet tune: {self._concurrency} callers, rows of a call: {self._rows}, "
            f"mean pause: {span(self._pause or 0.0)}.",
            f"Against the defaults: {verdict.reason}.",
        ]

    def report(self, best: "Setting", verdict: "TrialVerdict | None", path: Path) -> None:
        from sublet.tools.loadtest.setting import FILE

        suggested = verdict is not None and verdict.suggested
        if self._as_json:
            document = {
                "about": self._about,
                "concurrency": self._concurrency,
                "rows": self._rows,
                "pause": self._pause,
                "target": self._goal.target,
                "trials": self._trials,
                "best": best,
                "verdict": verdict,
                "suggested": best.options() if suggested else None,
                "written": str(path) if suggested else None,
            }
            print_json(document, indent=2)
            return
        say("")
        if verdict is None:
            say("No setting was better than the defaults. Nothing is written.")
            if not self._goal.met(self._trials[0].figures):
                say("The target was not met: try less concurrency, or a smaller model.")
        elif not suggested:
            say(f"{best}, against the defaults in turns:\n{verdict.reason}.")
            say("Nothing is suggested, and nothing is written.")
        else:
            say(f"{best}, against the defaults in turns:\n{verdict.reason}.")
            beside = path.parent == self._local.path and path.name == FILE
            flag = (
                "--enable_per_model_batching_parameters"
                if beside
                else f"--enable_batching --batching_parameters_file {path}"
            )
            say(f"Written to {path}. To serve with it:\n  sublet serve … {flag}")

    def _show(self, trial: "Trial") -> None:
        from sublet.tools.loadtest.tables import number, span

        one = trial.figures
        batch = "-" if one.batch is None else f"{one.batch:.1f}"
        best = "" if trial.before is None else number(trial.before.rate)
        gain = "" if trial.gain is None else f"{trial.gain:+.1%}"
        missed = "" if self._goal.met(one) else "  missed"
        self._say(
            f"{trial.setting!s:<{_WIDTH}}{number(one.rate):>8}{span(one.p50):>9}"
            f"{span(one.p99):>9}{batch:>7}{best:>11}{gain:>8}{missed}"
        )

    def _say(self, text: str) -> None:
        self._progress.clear()
        if not self._as_json:
            say(text)
