"""Traces of calls, with OpenTelemetry's own SDK and a receiver of its protocol."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.errors import ServingError
from sublet.serving.catalogue import State, Version
from sublet.serving.frontend.engine_router import EngineRouter
from sublet.serving.frontend.grpc import calls
from sublet.serving.frontend.limits import Limits
from sublet.serving.frontend.request_traces import incoming, open_if_asked
from sublet.serving.frontend.rest import heads
from support.numpy_engine import floats, numpy_engine
from support.otlp import attributes, receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01".encode()


def test_queue_and_compute_of_a_call_are_in_its_callers_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(path: str) -> None:
        router = EngineRouter()
        router.traces, fault = open_if_asked()
        assert not fault
        version = Version("double", 1, State.AVAILABLE, engines=(path,))
        incoming.set(HEADER)
        await router.infer(version, "serving_default", {"x": floats([[1, 2], [3, 4]])})
        incoming.set(b"no header at all")
        with pytest.raises(ServingError):
            await router.infer(version, "none", {"x": floats([[1, 2]])})
        await asyncio.sleep(0)
        router.close()

    with numpy_engine(tmp_path) as engine, receiver() as received:
        engine.add("double")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        asyncio.run(story(engine.path))
    good, bad = sorted(received.named("predict double"), key=lambda one: one.start_time_unix_nano)
    assert (good.trace_id.hex(), good.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(good)["sublet.rows"] == 2
    assert (bad.trace_id.hex() != TRACE, bad.status.code) == (True, 2)
    (queue,), (compute,) = received.named("queue"), received.named("compute")
    assert queue.parent_span_id == compute.parent_span_id == good.span_id
    assert attributes(compute)["sublet.batch.rows"] >= 2
    times = [good.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano]
    times += [compute.start_time_unix_nano, compute.end_time_unix_nano, good.end_time_unix_nano]
    assert times == sorted(times)
    assert received.services == {"sublet serve"}


def test_both_protocols_read_the_header() -> None:
    raw = b"GET /v1/models/a HTTP/1.1\r\nHost: a\r\nTraceparent: " + HEADER + b"\r\n\r\n"
    assert heads.parse(raw, Limits()).trace == HEADER
    fields = ((b":method", b"POST"), (b":path", b"/a"), (b":scheme", b"http"))
    more = ((b"content-type", b"application/grpc"), (b"traceparent", HEADER))
    assert calls.head((*fields, *more)).trace == HEADER


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=str,
)
def test_nothing_is_imported_that_nobody_has_asked_for(settings: dict[str, str]) -> None:
    program = (
        "import sys; from sublet.serving.frontend import process, request_traces;"
        "assert request_traces.open_if_asked() == (None, '');"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], env=settings, check=True)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    traces, fault = open_if_asked()
    assert traces is None
    assert "sublet[otel]" in fault
