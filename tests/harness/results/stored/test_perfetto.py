"""Traces for ui.perfetto.dev: the rules of the Trace Event Format, and the run's own times."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.errors import ConfigError
from harness.record.span_log import SpanLog
from harness.results.stored import perfetto
from harness.results.stored.perfetto import TRACE
from harness.results.tables import RunResult
from harness.studies.run import serve_trace
from tests.harness.builders import config

STARVED = ("trace.num_requests=60", "arrival.rate=40", "num_blocks=260", "model=qwen3-0.6b", "progress=false")
SWAP = ("scheduler.preemption=swap", "tiers=host")


def served(folder: Path, *overrides: str) -> RunResult:
    return serve_trace(config(*STARVED, "perfetto=true", *overrides), write=lambda run: run.write(folder)).result


def spans_of(result: RunResult) -> pd.DataFrame:
    assert result.spans is not None
    return result.spans


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("perfetto")


@pytest.fixture(scope="module")
def result(folder: Path) -> RunResult:
    return served(folder)


def events_in(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / TRACE, "rt") as file:
        document = json.load(file)
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def check_format(events: list[dict[str, Any]]) -> None:
    """Times ascend, slices of a thread do not overlap, and every asynchronous slice is closed, innermost first."""
    times = [event["ts"] for event in events]
    assert times == sorted(times) and all(np.isfinite(times)) and min(times) >= 0
    open_slices: dict[object, list[str]] = defaultdict(list)
    busy_until = 0.0
    for event in events:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys()
        match event["ph"]:
            case "X":
                assert event["ts"] >= busy_until - 1e-3 and event["dur"] >= 0
                busy_until = event["ts"] + event["dur"]
            case "b":
                open_slices[event["cat"], event["id"]].append(event["name"])
            case "e":
                assert open_slices[event["cat"], event["id"]].pop() == event["name"]
            case phase:
                assert phase in ("M", "C", "i")
    assert not any(open_slices.values())


def test_the_trace_follows_the_format_and_the_run(folder: Path, result: RunResult) -> None:
    events = events_in(folder)
    check_format(events)
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == len(result.steps)
    assert sum(event["dur"] for event in steps) == pytest.approx(result.steps["duration"].sum() * 1e6, rel=1e-6)
    preempted = sum(event["args"]["requests"] for event in events if event["ph"] == "i")
    assert preempted == result.steps["num_preempted"].sum() > 0
    edges = {
        (event["id"], event["name"], event["ph"]): event["ts"] for event in events if event.get("cat") == "request"
    }
    for row in result.requests.to_dict("records"):
        request = str(row["request_id"])
        assert edges[request, "request", "b"] == pytest.approx(row["arrival_time"] * 1e6, abs=1e-3)
        assert edges[request, "waiting", "e"] == pytest.approx(row["first_scheduled_time"] * 1e6, abs=1e-3)
        assert edges[request, "request", "e"] == pytest.approx(row["finish_time"] * 1e6, abs=1e-3)
    gaps = [event for event in events if event["ph"] == "b" and event["name"] == "preempted"]
    assert len(gaps) == result.requests["num_preemptions"].sum() == check_spans(result)["preempted"]


def check_spans(result: RunResult) -> pd.Series[int]:
    """Spans of a request follow one another from its arrival to its end, and agree with its row; returns the counts."""
    spans = spans_of(result)
    lengths = (spans["end"] - spans["start"]).groupby([spans["request_id"], spans["state"]], observed=False).sum()
    counts = spans.groupby(["request_id", "state"], observed=False).size()
    for request, parts in spans.groupby(["request_id", "sequence"]):
        start, end = parts["start"].to_numpy(), parts["end"].to_numpy()
        assert (start[1:] == end[:-1]).all() and (end >= start).all(), request
    for row in result.requests.to_dict("records"):
        request, parts = row["request_id"], spans[spans["request_id"] == row["request_id"]]
        assert counts[request, "preempted"] + counts[request, "swapped"] == row["num_preemptions"]
        assert counts[request, "swapped"] == row["num_swaps"]
        assert parts["start"].min() == row["arrival_time"] and parts["end"].max() == row["finish_time"]
        assert lengths[request, "waiting"] == pytest.approx(row["queue_time"], abs=1e-8)
        if row["num_sequences"] == 1:
            assert lengths[request].sum() == pytest.approx(row["e2el"], abs=1e-8)
            assert lengths[request, "parked"] == pytest.approx(row["parked_time"], abs=1e-8)
    return spans["state"].value_counts()


@pytest.mark.parametrize(
    ("overrides", "states"),
    [
        (("scheduler.async_scheduling=true", *SWAP), "swapped parked"),
        *[
            pytest.param(overrides, states, marks=pytest.mark.slow)
            for overrides, states in (
                (SWAP, "swapped parked"),
                (("scheduler.async_scheduling=true",), "preempted"),
                (("scheduler=vllm_v0", "trace.n=3"), "preempted"),
                (("scheduler=static",), "preempted"),
                (("trace=shared_prefix", "tiers=host_disk", "tiers.host.gib=0.05"), "parked"),
            )
        ],
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value).replace("scheduler.", "") or "recompute",
)
def test_spans_add_up_and_agree_with_the_tables(tmp_path: Path, overrides: tuple[str, ...], states: str) -> None:
    counts = check_spans(served(tmp_path, *overrides, "trace.num_requests=40"))
    assert all(counts[state] > 0 for state in ("waiting", "prefill", "decode", *states.split()))
    check_format(events_in(tmp_path))


def test_samples_of_a_request_have_slices_of_their_own(tmp_path: Path) -> None:
    result = served(tmp_path, "trace.num_requests=20", "trace.n=2")
    starts = spans_of(result).groupby(["request_id", "sequence"])["start"].min().unstack()
    requests = result.requests.set_index("request_id")
    np.testing.assert_array_equal(starts[0], requests["arrival_time"])
    np.testing.assert_array_equal(starts[1], requests["first_token_time"])
    tracks = {event["id"] for event in events_in(tmp_path) if event.get("cat") == "request"}
    assert tracks == {*map(str, requests.index), *(f"{request}.1" for request in requests.index)}


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a span log was made")

    monkeypatch.setattr(SpanLog, "__init__", fail)
    served = serve_trace(config(*STARVED, "trace.num_requests=5"), write=lambda run: run.write(tmp_path))
    assert served.result.spans is None and not (tmp_path / TRACE).exists()


@pytest.mark.parametrize("window", [(0.5, 1.0), (0.0, 0.01), (1e6, 2e6)])
def test_a_window_cuts_slices_at_its_borders(result: RunResult, window: tuple[float, float]) -> None:
    events = perfetto.trace_events(result, spans_of(result), *window)
    check_format(events)
    shown = [event for event in events if event["ph"] != "M"]
    assert all(window[0] * 1e6 <= event["ts"] <= window[1] * 1e6 for event in shown)
    assert all(event["ts"] + event.get("dur", 0) <= window[1] * 1e6 + 1e-3 for event in shown)
    assert bool(shown) == (window[0] < 1e6)


def test_a_long_run_is_cut(result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 500)
    perfetto.write_trace(result, spans_of(result), tmp_path)
    events = events_in(tmp_path)
    check_format(events)
    assert 100 < len(events) <= 500 + 3


def test_requests_that_did_not_end(result: RunResult, tmp_path: Path) -> None:
    refused = served(tmp_path, "max_model_len=300")
    events = events_in(tmp_path)
    check_format(events)
    rejected = set(refused.requests["request_id"][refused.requests["status"] == "rejected"])
    assert rejected
    for request in rejected:
        names = [event["name"] for event in events if event.get("id") == str(request)]
        assert names == ["request", "waiting", "waiting", "request"]
    spans = spans_of(result).copy()
    spans = spans[(spans["start"] < 1.0) | (spans["end"] < 1.0)]
    spans.loc[spans["end"] > 1.0, "end"] = np.nan  # as if the run had been interrupted
    events = perfetto.trace_events(result, spans, 0.0, np.inf)
    check_format(events)


def test_windows_that_are_none() -> None:
    for window in ("[1]", "[2,1]", "[1,2,3]"):
        with pytest.raises(ConfigError, match="^perfetto_window="):
            config("perfetto=true", f"perfetto_window={window}")
    with pytest.raises(ConfigError, match="read with perfetto=true only"):
        config("perfetto_window=[1,2]")
