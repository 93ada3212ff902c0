"""Spans in OpenTelemetry: the SDK, files and collectors get what the tables say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.config.schema.sinks import OtelSink
from harness.errors import TwinServeError
from harness.results.stored.files import REQUESTS, SPANS, read_summary, read_table
from harness.sinks.entry import read_entry
from harness.sinks.spans import Span, request_spans
from tests.harness.sinks.builders import collector, folder_of

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

START, START_NS = "2001-09-09T01:46:40Z", 1_000_000_000 * 1_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    starved = ("trace.num_requests=120", "arrival.rate=40", "num_blocks=260", "model=qwen3-0.6b", "progress=false")
    return folder_of(tmp_path_factory.mktemp("spans") / "run", *starved)


@pytest.fixture(scope="module")
def spans(folder: Path) -> list[Span]:
    requests, states = read_table(folder / REQUESTS), read_table(folder / SPANS)
    return list(request_spans(requests, states, read_summary(folder)))


def at(time_s: float) -> int:
    return START_NS + round(time_s * 1e9)


def test_each_request_is_a_trace(spans: list[Span]) -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind

    from harness.sinks.otlp import export_spans

    kept = InMemorySpanExporter()
    number = export_spans(spans, kept, {"service.name": "test"}, START_NS, SpanKind.SERVER)
    got = kept.get_finished_spans()
    assert number == len(got) == sum(1 + len(span.inner) for span in spans)
    roots = [each for each in got if each.parent is None]
    assert len({each.context.trace_id for each in roots}) == len(roots) == len(spans)
    inside: dict[int, list[Any]] = {}
    for each in got:
        inside.setdefault(each.parent.span_id if each.parent else 0, []).append(each)
    for root, span in zip(roots, spans, strict=True):
        found = [(each.name, each.start_time, each.end_time) for each in inside[root.context.span_id]]
        assert found == [(each.name, at(each.start_s), at(each.end_s)) for each in span.inner]
        lists = {key: tuple(value) for key, value in span.attributes.items() if isinstance(value, list)}
        assert dict(root.attributes) == {**span.attributes, **lists}
        assert [(each.name, each.timestamp) for each in root.events] == [(name, at(when)) for name, when in span.events]
        assert root.resource.attributes["service.name"] == "test"


def test_files_and_collectors_get_them_in_otlp(folder: Path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from harness.sinks.otlp import OTLP_LINES, export

    entry = read_entry(folder)
    number = export(entry, OtelSink(exporter="file", start=START))
    written = [span for line in (folder / OTLP_LINES).read_text().splitlines() for span in _spans(json.loads(line))]
    assert len(written) == number > 512
    assert min(int(each["startTimeUnixNano"]) for each in written) == START_NS
    assert all(len(bytes.fromhex(each["traceId"])) == 16 for each in written)
    bodies: list[bytes] = []
    with collector(bodies) as address:
        assert export(entry, OtelSink(endpoint=address)) == number
    taken = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    groups = [scope.spans for each in taken for group in each.resource_spans for scope in group.scope_spans]
    assert sum(map(len, groups)) == number
    ends = max(each.end_time_unix_nano for spans in groups for each in spans)
    assert abs(ends - entry.ended_ms * 1_000_000) < 2_000_000  # the run ended when its results were written


def test_a_collector_that_refuses_them_is_an_error(folder: Path) -> None:
    from harness.sinks.otlp import export

    with collector([], status=400) as address, pytest.raises(TwinServeError, match="were not taken"):
        export(read_entry(folder), OtelSink(endpoint=address))


def _spans(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [span for group in document["resourceSpans"] for scope in group["scopeSpans"] for span in scope["spans"]]
