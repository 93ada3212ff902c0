"""Traces for ui.perfetto.dev: the rules of the Trace Event Format, and the run's own times."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.results import perfetto
from harness.results.files import read_results
from harness.results.perfetto import TRACE
from harness.results.tables import RunResult
from tests.harness.builders import config, execute_in

STARVED = ("trace.num_requests=60", "arrival.rate=40", "num_blocks=260", "model=qwen3-0.6b", "progress=false")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto")
    execute_in(path, config(*STARVED, "perfetto=true"))
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> RunResult:
    return read_results(folder)[0]


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
    preempted = sum(event["args"]["requests"] for event in events if event["name"] == "preempted")
    assert preempted == result.steps["num_preempted"].sum() > 0
    spans = {
        (event["id"], event["name"], event["ph"]): event["ts"] for event in events if event.get("cat") == "request"
    }
    for row in result.requests.to_dict("records"):
        request = row["request_id"]
        assert spans[request, "queued", "b"] == pytest.approx(row["arrival_time"] * 1e6, abs=1e-3)
        assert spans[request, "prefill", "b"] == pytest.approx(row["first_scheduled_time"] * 1e6, abs=1e-3)
        assert spans[request, "decode", "b"] == pytest.approx(row["first_token_time"] * 1e6, abs=1e-3)
        assert spans[request, "request", "e"] == pytest.approx(row["finish_time"] * 1e6, abs=1e-3)


@pytest.mark.parametrize("window", [(0.5, 1.0), (0.0, 0.01), (1e6, 2e6)])
def test_a_window_cuts_slices_at_its_borders(result: RunResult, window: tuple[float, float]) -> None:
    events = perfetto.trace_events(result, *window)
    check_format(events)
    shown = [event for event in events if event["ph"] != "M"]
    assert all(window[0] * 1e6 <= event["ts"] <= window[1] * 1e6 for event in shown)
    assert all(event["ts"] + event.get("dur", 0) <= window[1] * 1e6 + 1e-3 for event in shown)
    assert bool(shown) == (window[0] < 1e6)


def test_a_long_run_is_cut(result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 500)
    perfetto.write_trace(result, tmp_path)
    events = events_in(tmp_path)
    check_format(events)
    assert 100 < len(events) <= 500 + 3


def test_requests_that_never_ran(result: RunResult) -> None:
    requests = result.requests.copy()
    times = ["first_scheduled_time", "first_token_time", "finish_time"]
    requests.loc[0, times] = np.nan
    requests.loc[0, "status"] = "rejected"
    requests.loc[1, times[1:]] = np.nan
    requests.loc[1, "status"] = "unfinished"
    cut = RunResult(requests, result.steps, result.gaps, result.num_blocks, result.block_size, False, {})
    events = perfetto.trace_events(cut, 0.0, np.inf)
    check_format(events)
    assert {event["name"] for event in events if event.get("id") == 1} == {"request", "queued", "prefill"}


def test_windows_that_are_none() -> None:
    for window in ("[1]", "[2,1]", "[1,2,3]"):
        with pytest.raises(ConfigError, match="^perfetto_window="):
            config("perfetto=true", f"perfetto_window={window}")
    with pytest.raises(ConfigError, match="read with perfetto=true only"):
        config("perfetto_window=[1,2]")
