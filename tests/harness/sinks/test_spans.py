"""Requests as spans: what OpenTelemetry gets is what the tables say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from harness.results.stored.files import REQUESTS, SPANS, read_summary, read_table
from harness.sinks.spans import Span, request_spans
from tests.harness.sinks.builders import folder_of

# Preemptions, and prompts that have servers of their own.
STARVED = ("trace.num_requests=60", "arrival.rate=40", "num_blocks=260", "model=qwen3-0.6b", "progress=false")
APART = ("trace.num_requests=20", "arrival.rate=40", "fleet=disaggregated", "progress=false")


@pytest.fixture(scope="module", params=[STARVED, APART], ids=["starved", "apart"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("spans") / "run", *request.param)


def spans_in(folder: Path, states: pd.DataFrame | None) -> tuple[list[Span], pd.DataFrame]:
    requests = read_table(folder / REQUESTS)
    return list(request_spans(requests, states, read_summary(folder))), requests


def test_the_spans_of_a_request_follow_one_another_from_its_arrival_to_its_end(folder: Path) -> None:
    spans, requests = spans_in(folder, read_table(folder / SPANS))
    assert len(spans) == len(requests)
    for span, row in zip(spans, requests.to_dict("records"), strict=True):
        inner = span.inner
        assert (inner[0].name, inner[-1].name) == ("queue", "decode")
        assert [each.end_s for each in inner[:-1]] == [each.start_s for each in inner[1:]]
        assert (span.start_s, span.end_s) == (inner[0].start_s, inner[-1].end_s)
        assert (span.start_s, span.end_s) == (row["arrival_time"], row["finish_time"])
        assert inner[0].end_s == row["first_scheduled_time"]
        assert dict(span.events)["first token"] == row["first_token_time"]
        assert [name for name, _ in span.events].count("preempted") == row["num_preemptions"]
        moved = [each for each in inner if each.name == "hand-over"]
        assert len(moved) == ("prefill_server" in row)
        assert all(row["prefill_end_time"] <= each.start_s for each in moved)
        assert span.attributes["gen_ai.usage.input_tokens"] == row["num_prompt_tokens"]
        assert span.attributes["gen_ai.response.time_to_first_chunk"] == row["ttft"]
    assert sum(requests["num_preemptions"]) or "prefill_server" in requests


def test_without_a_record_of_states_the_tables_tell_the_parts(folder: Path) -> None:
    spans, requests = spans_in(folder, None)
    assert {tuple(each.name for each in span.inner) for span in spans} == {("queue", "prefill", "decode")}
    requests[["first_scheduled_time"]] = float("nan")  # as a client sees it
    (outside, *_) = request_spans(requests, None, read_summary(folder))
    assert [each.name for each in outside.inner] == ["first token", "decode"]


def test_what_was_not_served_is_an_error(folder: Path) -> None:
    requests = read_table(folder / REQUESTS).head(2).copy()
    requests["status"] = ["rejected", "unfinished"]
    requests["error"] = ["longer than the pool", None]
    requests[["first_scheduled_time", "first_token_time", "finish_time", "ttft"]] = float("nan")
    refused, left = request_spans(requests, None, read_summary(folder))
    assert (refused.error, refused.end_s) == ("longer than the pool", refused.start_s)
    assert (left.error, left.attributes["error.type"]) == ("unfinished", "unfinished")
    assert left.end_s == read_summary(folder)["run_time_s"]
