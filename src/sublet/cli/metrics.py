"""`sublet metrics`: the broker's metrics for Prometheus, once or over HTTP."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from importlib import resources

import click

from sublet.cli.terminal_text import tell
from sublet.errors import BadRequest


@click.command("metrics")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve them at /metrics, such as on 127.0.0.1:9400, until stopped.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File of tokens; each scrape must carry one. Needed where other machines can connect.",
)
@click.option(
    "--traces",
    is_flag=True,
    help="Send traces of jobs to OTEL_EXPORTER_OTLP_ENDPOINT, until stopped.",
)
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana instead.")
def command(listen: str | None, token_file: str | None, traces: bool, dashboard: bool) -> int:
    """Print the broker's metrics as Prometheus reads them, or serve them.

    \b
    sublet metrics
    sublet metrics --listen 127.0.0.1:9400
    sublet metrics --dashboard > dashboard.json
    OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 sublet metrics --traces
    """
    if token_file is not None and listen is None:
        raise BadRequest("--token-file is for --listen.", "Add --listen HOST:PORT.")
    if dashboard:
        sys.stdout.write((resources.files("sublet.exporter") / "dashboard.json").read_text())
    elif traces:
        with _sent_traces() as closed:
            if listen is not None:
                _serve(listen, token_file)
            else:
                closed.wait()
    elif listen is None:
        sys.stdout.write(_read())
    else:
        _serve(listen, token_file)
    return 0


@contextlib.contextmanager
def _sent_traces() -> Iterator[threading.Event]:
    """Send traces of jobs in a thread, until Ctrl-C or SIGTERM; then send what is left."""
    from sublet import tracing
    from sublet.exporter.job_traces import JobTraces, follow
    from sublet.home import Home

    if not tracing.is_asked_for():
        raise BadRequest(
            "--traces: nothing says where traces go.",
            "Set OTEL_EXPORTER_OTLP_ENDPOINT, such as http://127.0.0.1:4318.",
        )
    provider = tracing.open_provider("sublet")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    closed = threading.Event()
    traces = JobTraces(provider.get_tracer("sublet.jobs"))
    threading.Thread(target=follow, args=(Home.find(), traces, closed), daemon=True).start()
    tell("sending traces of jobs that end from now on")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield closed
    finally:
        closed.set()
        provider.shutdown()


def _read() -> str:
    from sublet.exporter.families import exposition
    from sublet.exporter.reading import process, read
    from sublet.home import Home

    metrics = read(Home.find())
    return exposition(metrics, process(metrics.pid) if metrics is not None else None)


def _serve(listen: str, token_file: str | None) -> None:
    from sublet.exporter.server import MetricsServer, parse_address
    from sublet.serving.access import digests, read_tokens

    host, port = parse_address(listen)
    tokens = digests(read_tokens(token_file, "--token-file")) if token_file is not None else ()
    with MetricsServer(host, port, _read, tokens) as server:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        tell(f"metrics on {server.url}")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=60.0)
