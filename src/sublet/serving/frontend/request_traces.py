"""A trace of each call of a model: its queue, and its time in TensorFlow.

    predict ─────────────────────────────────   from its start in this front end to its answer
       ····  queue ──────  compute ────  ····   the dots: the way to the engine and back

A call is part of the trace that its `traceparent` names. The engine reports how long a call waited
and how long its batch took; the way is what is left, half of it each. Spans are made when the
answer is there, so a call costs nothing before.
"""

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from sublet import tracing
from sublet.channel.client_protocol import Answer
from sublet.errors import WorldError
from sublet.serving.catalogue import Version

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

incoming: ContextVar[bytes] = ContextVar("traceparent", default=b"")
"""The header of the request that is being handled."""
_LONGEST = 256
_NANO = 1e9


class RequestTraces:
    """Makes spans. Used in the front end's event loop; they are sent by a thread."""

    def __init__(self) -> None:
        provider = tracing.open_provider("sublet serve")
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("sublet.serving")
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER
        self._error = Status(StatusCode.ERROR)

    def record(
        self,
        version: Version,
        signature: str,
        header: bytes,
        began: float,
        rows: int,
        outcome: Answer | BaseException | None,
    ) -> None:
        """A call has ended, which began at this time of `time.monotonic`; None: it was given up."""
        elapsed = time.monotonic() - began
        end = time.time()
        start = end - elapsed
        span = self._tracer.start_span(
            f"predict {version.model}",
            self._context(header),
            self._server,
            {
                "sublet.model.name": version.model,
                "sublet.model.version": version.number,
                "sublet.model.signature": signature,
                "sublet.rows": rows,
            },
            start_time=int(start * _NANO),
        )
        if isinstance(outcome, Answer):
            if span.is_recording():
                self._phases(span, start, elapsed, outcome)
        else:
            span.set_status(self._error)
            span.set_attribute("error.type", type(outcome).__name__ if outcome else "cancelled")
        span.end(int(end * _NANO))

    def _phases(self, span: "Span", start: float, elapsed: float, answer: Answer) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(span)
        queued = start + max(0.0, elapsed - answer.queued - answer.computed) / 2
        computed = queued + answer.queued
        queue = self._tracer.start_span("queue", context, start_time=int(queued * _NANO))
        queue.end(int(computed * _NANO))
        compute = self._tracer.start_span(
            "compute",
            context,
            attributes={"sublet.batch.rows": answer.rows},
            start_time=int(computed * _NANO),
        )
        compute.end(int((computed + answer.computed) * _NANO))

    def _context(self, header: bytes) -> "Context | None":
        if not header or len(header) > _LONGEST:
            return None
        return self._propagator.extract({"traceparent": header.decode("latin-1")})

    def close(self) -> None:
        """Send the traces that are left, and stop."""
        self._provider.shutdown()


def open_if_asked() -> tuple[RequestTraces | None, str]:
    """What makes traces if the environment asks for them; else None, and why not if that is a
    fault."""
    if not tracing.is_asked_for():
        return None, ""
    try:
        return RequestTraces(), ""
    except WorldError as error:
        return None, f"no traces are sent: {error.message} {error.hint}"
