"""`sublet bench`: how fast a model answers, with more and more calls at once."""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sublet.cli import load_options
from sublet.cli.completion import complete_models
from sublet.cli.terminal_text import print_json, say
from sublet.errors import BadRequest
from sublet.text import plain

if TYPE_CHECKING:
    from sublet.tools.loadtest.figures import Figures
    from sublet.tools.loadtest.subject import Subject, Wanted

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench")
@click.argument("model", shell_complete=complete_models)
@click.option(
    "-c",
    "--concurrency",
    default="1:32",
    show_default=True,
    metavar="STEPS",
    help="Calls at once: 8, 1:32 (doubling), 1:32:4 (every fourth), or 1,5,20.",
)
@click.option(
    "--time", default="10s", show_default=True, metavar="SPAN", help="Time per step, at most."
)
@load_options.about_calls
@click.option("--batching", type=_FILE, help="Batching parameters, if MODEL gets its own engine.")
@click.option("--url", metavar="URL", help="Measure a server's REST API: http://localhost:8501.")
@click.option("--grpc", metavar="HOST:PORT", help="Measure a server's gRPC API.")
@click.option("--auth_token_file", metavar="FILE", help="File with the server's token.")
@click.option("--csv", "sheet", type=_FILE, help="Write the figures to this CSV file.")
@click.option("--plot", type=_FILE, help="Write a plot to this SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    concurrency: str,
    time: str,
    rows: int | None,
    shape: tuple[str, ...],
    pause: str | None,
    data: Path | None,
    signature: str | None,
    version: int | None,
    memory: str | None,
    device: str | None,
    batching: Path | None,
    url: str | None,
    grpc: str | None,
    auth_token_file: str | None,
    sheet: Path | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Measure MODEL's throughput and latency at rising concurrency.

    MODEL is a SavedModel, a .keras file or a directory of versions, which gets its own engine
    under a lease; or the name of a model that is being served. Each step ends when its figures are
    stable. Ctrl-C shows what was measured so far.

    \b
    sublet bench models/resnet --concurrency 1:32
    sublet bench resnet --rows 4
    sublet bench resnet --url http://localhost:8501
    """
    from sublet.serving import extra

    extra.require()  # The others import what it looks for.
    from sublet.tools.loadtest import subject

    several = load_options.steps(concurrency)
    most = load_options.seconds("--time", time, 0.2, 3600)
    asked = load_options.wanted(rows, shape, data, signature)
    load_options.writable(sheet, plot)
    if url is not None and grpc is not None:
        raise BadRequest("Both --url and --grpc are given.", "Measure one after the other.")
    remote = url is not None or grpc is not None
    local = None if remote else subject.locate(model, version)
    if local is None and (memory or device or batching):
        raise BadRequest(
            "--memory, --device and --batching are for an engine of its own.",
            f"{model} is served already: leave them out, or name the model's directory.",
        )
    token = _token(auth_token_file, remote)
    bench = _Bench(several, most, load_options.pause(pause) or 0.0, as_json)
    try:
        with contextlib.ExitStack() as stack:
            if local is not None:
                own = load_options.engine(local, memory, device, _options(batching))
                stack.callback(own.close)
                opening = subject.own(own, local, asked)
            elif remote:
                opening = _remote(url, grpc or "", model, version, token, asked)
            else:
                opening = subject.running(model, version, asked)
            load_options.run(bench.run(opening), bool(pause))
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        bench.report(sheet, plot)
    return 0


async def _remote(
    url: str | None, grpc: str, model: str, version: int | None, token: str, asked: "Wanted"
) -> "Subject":
    """A model of a server of any make: at a URL through REST, else through gRPC."""
    from sublet.tools.loadtest import subject

    transport: subject.Transport
    if url is not None:
        from sublet.tools.loadtest.http import RestTransport

        transport = RestTransport(url, model, version, token)
    else:
        try:
            from sublet.tools.loadtest.rpc import GrpcTransport
        except ImportError:
            raise BadRequest(
                "--grpc needs the grpcio package.", "Install it: pip install grpcio."
            ) from None
        transport = GrpcTransport(grpc, model, version, token)
    return await subject.opened(transport, model, version, asked)


def _token(path: str | None, remote: bool) -> str:
    if path is None:
        return ""
    if not remote:
        raise BadRequest("--auth_token_file is for --url and --grpc.", "Leave it out.")
    from sublet.serving.access import read_tokens

    return read_tokens(path, "--auth_token_file")[0].decode()


def _options(batching: Path | None) -> dict[str, Any]:
    if batching is None:
        return {}
    from sublet.serving.control import config, config_files

    text = config.read(str(batching), "--batching")
    return config_files.read_batching(text, str(batching))


class _Bench:
    """The steps, and what is shown of them."""

    def __init__(self, several: tuple[int, ...], most: float, pause: float, as_json: bool) -> None:
        self._several = several
        self._most = most
        self._pause = pause
        self._as_json = as_json
        self._subject: Subject | None = None
        self._figures: list[Figures] = []
        self._progress = load_options.Progress()

    async def run(self, opening: Any) -> None:
        from sublet.tools.loadtest.load import Load

        subject = self._subject = await opening
        load = Load(subject.transport, self._progress.window)
        load.pause = self._pause
        try:
            self._progress.show("the first calls …")
            await subject.transport.ready(1)
            await load.check(self._most)
            self._begin(subject)
            for concurrency in self._several:
                self._progress.title = f"concurrency {concurrency}"
                self._add(await load.step(concurrency, self._most))
        except asyncio.CancelledError:
            if load.cut is not None:
                self._add(load.cut)
            raise
        finally:
            self._progress.clear()
            await subject.transport.close()

    def report(self, sheet: Path | None, plot: Path | None) -> None:
        """All that was measured, as files and at the end of the table."""
        from sublet.tools.loadtest import drawing, tables

        if not self._figures or self._subject is None:
            return
        if sheet is not None:
            load_options.write(sheet, tables.sheet(self._figures))
        if plot is not None:
            load_options.write(plot, drawing.draw(self._figures, self._subject.about))
        said = tables.advice(self._figures)
        if self._as_json:
            subject = self._subject
            document = {
                "model": subject.model,
                "about": subject.about,
                "version": subject.version,
                "signature": subject.signature,
                "inputs": subject.inputs,
                "rows": subject.transport.rows,
                "pause": self._pause,
                "complete": len(self._figures) == len(self._several),
                "figures": self._figures,
                "advice": said,
            }
            print_json(document, indent=2)
            return
        say(f"\n{tables.bars(self._figures)}\n")
        say("\n".join([*tables.legend(self._figures), *said]))

    def _begin(self, subject: "Subject") -> None:
        from sublet.tools.loadtest import tables

        self._progress.clear()
        if not self._as_json:
            sent = ", ".join(f"{name} {what}" for name, what in subject.inputs.items())
            how = plain(f"{subject.signature}: {sent or 'no inputs'}")
            say(f"{plain(subject.about)}\n{how}\n")
            say(tables.head())

    def _add(self, figures: "Figures") -> None:
        from sublet.tools.loadtest import tables

        self._figures.append(figures)
        self._progress.clear()
        if not self._as_json:
            say(tables.row(figures))
