"""Metrics against a slow reference that walks every token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import MetricsConfig, SloConfig
from harness.results.measures.servers import step_integral
from harness.results.metrics import summarize
from harness.results.tables import Gaps, RunResult, percentiles_of
from tests.harness.results.builders import ToyRequest, run_toy_engine

PERCENTILES = (1.0, 50.0, 90.0, 99.0, 99.9)
seconds = st.floats(0, 1e3)
step_seconds = st.one_of(st.just(0.0), st.floats(1e-3, 10))


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 5)), max_size=40),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_gaps_equal_numpy_on_the_expanded_values(pairs: list[tuple[float, int]], percentiles: list[float]) -> None:
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    weights = np.array([weight for _, weight in pairs], dtype=np.int64)
    gaps, expanded = Gaps(values, weights), np.repeat(values, weights)
    assert gaps.count == len(expanded)
    if not len(expanded):
        assert np.isnan([gaps.mean(), gaps.std(), *gaps.percentiles(percentiles)]).all()
        return
    assert gaps.percentiles(percentiles).tolist() == np.percentile(expanded, percentiles).tolist()
    assert percentiles_of(expanded, percentiles).tolist() == np.percentile(expanded, percentiles).tolist()
    scale = np.abs(expanded).max()
    assert gaps.mean() == pytest.approx(expanded.mean(), rel=1e-9, abs=1e-12 * scale)
    assert gaps.std() == pytest.approx(expanded.std(), rel=1e-6, abs=1e-7 * scale)


@given(
    st.lists(st.tuples(seconds, step_seconds, st.integers(0, 100)), max_size=10),
    st.lists(st.floats(0, 1e4), min_size=1, max_size=9),
)
def test_step_integral_equals_a_walk_over_steps(rows: list[tuple[float, float, int]], times: list[float]) -> None:
    starts, durations, amounts, now = [], [], [], 0.0
    for idle, duration, amount in rows:
        starts.append(now + idle)
        durations.append(duration)
        amounts.append(amount)
        now = starts[-1] + duration
    got = step_integral(pd.DataFrame({"start_time": starts, "duration": durations}), np.array(amounts), times)
    for time, value in zip(times, got, strict=True):
        expected = 0.0
        for start, duration, amount in zip(starts, durations, amounts, strict=True):
            if start + duration <= time:
                expected += amount
            elif start < time:
                expected += amount * (time - start) / duration
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)


toy_requests = st.lists(
    st.builds(
        ToyRequest,
        arrival=st.floats(0, 20),
        prompt=st.integers(1, 900),
        output=st.integers(1, 60),
        cached=st.just(0),
    ),
    max_size=25,
)


@given(toy_requests, st.sampled_from([20, 60, 1000]), st.floats(0, 8), st.floats(0, 8), st.sampled_from([1.0, np.inf]))
def test_summary_equals_a_walk_over_tokens(
    requests: list[ToyRequest], num_blocks: int, warmup: float, drain: float, until_s: float
) -> None:
    for number, request in enumerate(requests):
        request.cached = request.prompt // 3 if number % 2 else 0
    result = run_toy_engine(requests, num_blocks=num_blocks, max_num_seqs=4, until_s=until_s)
    config = MetricsConfig(percentiles=PERCENTILES, warmup=warmup, drain=drain, slo=SloConfig(ttft_ms=400, tpot_ms=9))
    summary = summarize(result, config)
    expected = reference(requests, result, config)
    assert expected.keys() <= summary.keys()
    undefined = {name for name, value in expected.items() if value is None}
    assert undefined == {name for name in expected if summary[name] is None}
    for name in expected.keys() - undefined:
        assert summary[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-6), name


def reference(requests: list[ToyRequest], result: RunResult, config: MetricsConfig) -> dict[str, Any]:
    """The definitions, word for word, over token times; latencies in ms."""
    arrivals = [request.arrival for request in requests]
    start_s = min(arrivals, default=math.nan) + config.warmup
    end_s = max(arrivals, default=math.nan) - config.drain
    counted = [request for request in requests if start_s <= request.arrival <= end_s]
    finished = [request for request in counted if request.status == "finished"]
    first = min((request.arrival for request in counted), default=math.nan)
    last = max((request.tokens[-1] for request in finished), default=math.nan)
    latency: dict[str, list[float]] = {name: [] for name in ("ttft", "tpot", "e2el", "queue_time", "itl")}
    good = outputs = inputs = 0
    for request in finished:
        latency["ttft"].append(request.tokens[0] - request.arrival)
        latency["e2el"].append(request.tokens[-1] - request.arrival)
        latency["queue_time"].append(request.first_scheduled - request.arrival)
        tpot = 0.0
        if len(request.tokens) > 1:
            tpot = (request.tokens[-1] - request.tokens[0]) / (len(request.tokens) - 1)
            latency["tpot"].append(tpot)
        outputs += len(request.tokens)
        inputs += request.prompt
        good += latency["ttft"][-1] <= 0.4 and tpot <= 0.009
    for request in requests:
        for before, after in zip(request.tokens, request.tokens[1:], strict=False):
            latency["itl"].append(after - before)
    duration = last - first
    admitted = [request for request in counted if not math.isnan(request.first_scheduled)]
    out: dict[str, Any] = {
        "num_prompts": len(counted),
        "num_excluded": len(requests) - len(counted),
        "completed": len(finished),
        "failed": len(counted) - len(finished),
        "rejected": sum(request.status == "rejected" for request in counted),
        "unfinished": sum(request.status == "unfinished" for request in counted),
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": ratio(len(finished), duration),
        "request_goodput": ratio(good, duration),
        "goodput_share": ratio(good, len(counted)),
        "output_throughput": ratio(outputs, duration),
        "total_token_throughput": ratio(outputs + inputs, duration),
        "prefix_cache_hit_rate": ratio(sum(r.cached for r in admitted), sum(r.prompt for r in admitted)),
        "recomputed_tokens": sum(request.recomputed for request in counted),
        "preemptions": sum(request.preemptions for request in counted),
        "preempted_requests": sum(request.preemptions > 0 for request in counted),
    }
    for name, values in latency.items():
        ms = np.array(values) * 1e3
        for percentile in config.percentiles:
            label = f"p{percentile:g}"
            out[f"{label}_{name}_ms"] = float(np.percentile(ms, percentile)) if values else math.nan
        out[f"median_{name}_ms"] = float(np.median(ms)) if values else math.nan
        out[f"mean_{name}_ms"] = sum(ms) / len(ms) if values else math.nan
        out[f"std_{name}_ms"] = float(np.std(ms)) if values else math.nan
    out |= reference_engine(result, requests, first, last)
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in out.items()}


def reference_engine(result: RunResult, requests: list[ToyRequest], start: float, end: float) -> dict[str, float]:
    steps = result.steps.to_dict("records") if not math.isnan(start) else []
    if math.isnan(end) and steps:
        end = max(step["start_time"] + step["duration"] for step in steps)
    slots = ("num_kv_tokens", "num_reserved_slots", "num_external_slots")
    area = dict.fromkeys(("num_used_blocks", "num_saved_blocks", "num_running", "num_waiting", *slots), 0.0)
    peak = dict.fromkeys(area, 0)
    num_steps = sequences = tokens = 0
    for step in steps:
        overlap = min(step["start_time"] + step["duration"], end) - max(step["start_time"], start)
        if not overlap > 0:
            continue
        num_steps += 1
        sequences += step["num_prefill_seqs"] + step["num_decode_seqs"]
        tokens += step["num_prefill_tokens"] + step["num_decode_seqs"]
        for name in area:
            area[name] += step[name] * overlap
            peak[name] = max(peak[name], step[name])
    return {
        "num_steps": num_steps,
        "mean_batch_size": ratio(sequences, num_steps),
        "mean_batch_tokens": ratio(tokens, num_steps),
        "mean_kv_cache_usage": ratio(area["num_used_blocks"] / result.pool_blocks, end - start),
        "max_kv_cache_usage": peak["num_used_blocks"] / result.pool_blocks,
        **reference_slots(area, result, end - start),
        "mean_saved_blocks": ratio(area["num_saved_blocks"], end - start),
        "saved_block_share": ratio(area["num_saved_blocks"], area["num_saved_blocks"] + area["num_used_blocks"]),
        "mean_running": ratio(area["num_running"], end - start),
        "max_running": peak["num_running"],
        "mean_waiting": ratio(sum(waited(request, start, end) for request in requests), end - start),
        "max_waiting": peak["num_waiting"],
    }


def waited(request: ToyRequest, start: float, end: float) -> float:
    """Seconds between two times in which a request had arrived, or given way, and did not run."""
    if request.status == "rejected":
        return 0.0
    first = math.inf if math.isnan(request.first_scheduled) else request.first_scheduled
    spans = [[request.arrival, first], *request.gave_way]
    return sum(max(0.0, min(until, end) - max(since, start)) for since, until in spans)


def reference_slots(area: dict[str, float], result: RunResult, duration: float) -> dict[str, float]:
    tokens, reserved, external = area["num_kv_tokens"], area["num_reserved_slots"], area["num_external_slots"]
    internal = area["num_used_blocks"] * result.block_size - tokens - reserved
    shares = {"tokens": tokens, "reserved": reserved, "internal": internal, "external": external}
    num_slots = result.pool_blocks * result.block_size
    out = {f"mean_kv_{name}": ratio(slots / num_slots, duration) for name, slots in shares.items()}
    return {**out, "kv_waste": ratio(sum(shares.values()) - tokens, sum(shares.values()))}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
