"""Spans as OpenTelemetry has them, and where they are exported to."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from harness.config.schema.sinks import OtelSink
from harness.errors import TwinServeError
from harness.results.stored.files import REQUESTS, SPANS, read_summary, read_table
from harness.sinks.entry import Entry
from harness.sinks.spans import Span, request_spans

OTLP_LINES = "spans.jsonl"
_BATCH = 512  # spans of one export
_KINDS = {True: trace.SpanKind.CLIENT, False: trace.SpanKind.SERVER}


def export(entry: Entry, settings: OtelSink) -> int:
    """Export the spans of the requests of a run; returns their number, 0 for a run that left no requests.

    Raises:
        TwinServeError: the collector did not take them.
    """
    if not (entry.folder / REQUESTS).is_file():
        return 0
    summary = read_summary(entry.folder)
    requests = read_table(entry.folder / REQUESTS)
    states = read_table(entry.folder / SPANS) if (entry.folder / SPANS).is_file() else None
    started_ns = _started_ns(entry, settings, float(summary.get("run_time_s") or 0.0))
    resource = {
        "service.name": settings.service_name,
        "service.version": metadata.version("twinserve"),
        "twinserve.run": entry.name,
        "twinserve.simulated": bool(summary.get("simulated")),
        "twinserve.device": str(summary.get("device")),
    }
    kind = _KINDS[summary.get("engine") == "openai"]
    with _exporter(settings, entry.folder) as exporter:
        return export_spans(request_spans(requests, states, summary), exporter, resource, started_ns, kind)


def export_spans(
    spans: Iterable[Span], exporter: SpanExporter, resource: dict[str, Any], started_ns: int, kind: trace.SpanKind
) -> int:
    """Export `spans`, each with those inside it as one trace; returns the number of spans.

    Args:
        started_ns: time since 1970 that second 0 of the spans stands for.
        kind: of the outermost spans.

    Raises:
        TwinServeError: the exporter failed.
    """
    batches = _Batches(exporter)
    provider = TracerProvider(ALWAYS_ON, Resource.create(resource), shutdown_on_exit=False)
    provider.add_span_processor(batches)
    tracer = provider.get_tracer("twinserve")
    for span in spans:
        _add(tracer, span, started_ns, kind, None)
    batches.flush()
    return batches.number


def _add(tracer: trace.Tracer, span: Span, started_ns: int, kind: trace.SpanKind, context: Any) -> None:
    def at(time_s: float) -> int:
        return started_ns + round(time_s * 1e9)

    made = tracer.start_span(span.name, context, kind, dict(span.attributes), start_time=at(span.start_s))
    for name, time_s in span.events:
        made.add_event(name, timestamp=at(time_s))
    if span.error is not None:
        made.set_status(trace.StatusCode.ERROR, span.error)
    around = trace.set_span_in_context(made)
    for inner in span.inner:
        _add(tracer, inner, started_ns, trace.SpanKind.INTERNAL, around)
    made.end(at(span.end_s))


class _Batches(SpanProcessor):
    """Exports spans in batches, and says so if that fails; the processors of the SDK drop them then."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._waiting: list[ReadableSpan] = []
        self.number = 0

    def on_end(self, span: ReadableSpan) -> None:
        self._waiting.append(span)
        if len(self._waiting) == _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._waiting and self._exporter.export(self._waiting) is not SpanExportResult.SUCCESS:
            raise TwinServeError(f"spans were not taken after the first {self.number:,}")
        self.number += len(self._waiting)
        self._waiting = []


class OtlpLines(SpanExporter):
    """A line of JSON for each batch, as the file exporter of OpenTelemetry writes them."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        document = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
        for group in document["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    _write_ids_in_hex(span)
        self._file.write(json.dumps(document, separators=(",", ":")) + "\n")
        return SpanExportResult.SUCCESS


def _write_ids_in_hex(span: dict[str, Any]) -> None:
    """As OTLP's JSON has them, in place of base64, as protobuf's JSON has bytes."""
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in span:
            span[name] = base64.b64decode(span[name]).hex()


@contextmanager
def _exporter(settings: OtelSink, folder: Path) -> Iterator[SpanExporter]:
    if settings.exporter == "console":
        yield ConsoleSpanExporter()
    elif settings.exporter == "file":
        temporary = folder / f".{OTLP_LINES}"  # renamed when it is whole
        with temporary.open("w", encoding="utf-8") as file:
            yield OtlpLines(file)
        temporary.replace(folder / OTLP_LINES)
    else:
        exporter = OTLPSpanExporter(endpoint=_traces_at(settings.endpoint))
        try:
            yield exporter
        finally:
            exporter.shutdown()


def _traces_at(endpoint: str | None) -> str | None:
    if endpoint is None or endpoint.endswith("/v1/traces"):
        return endpoint
    return f"{endpoint.rstrip('/')}/v1/traces"


def _started_ns(entry: Entry, settings: OtelSink, run_s: float) -> int:
    if settings.start is not None:
        return round(datetime.fromisoformat(settings.start).timestamp() * 1e9)
    return entry.ended_ms * 1_000_000 - round(run_s * 1e9)
