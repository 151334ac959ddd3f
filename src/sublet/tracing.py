"""OpenTelemetry, for who asks for it: nothing of it is imported before.

Where traces go is said as everywhere, by the SDK's own variables: OTEL_EXPORTER_OTLP_ENDPOINT and
the others. `pip install 'sublet[otel]'` brings the packages.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sublet.errors import WorldError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_INSTALL = "pip install 'sublet[otel]'"


def is_asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this environment says where traces go, and that they are wanted."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    none = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return any(map(environ.get, ENDPOINTS)) and not (disabled or none)


def open_provider(service: str) -> "TracerProvider":
    """What makes and sends spans, in a thread of its own. Raises WorldError where the packages are
    missing. `service` is its name, if the environment has no other."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError as error:
        missing = error.name or "opentelemetry"
        raise WorldError(f"Traces need {missing}, which is not installed.", _INSTALL) from None
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter() -> "SpanExporter":
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # type: ignore[import-not-found]
            OTLPSpanExporter as GrpcExporter,
        )

        found: SpanExporter = GrpcExporter()
        return found
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
