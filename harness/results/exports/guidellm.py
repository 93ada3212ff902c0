"""A report of GuideLLM (schema version 2 of 0.8): one benchmark, with its requests and the statistics of latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.results.exports.sent import Sent

_PERCENTILES = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p999": 99.9,
}  # fmt: skip
_METRICS: Mapping[str, Callable[[Sent], float | None]] = {
    "request_latency": lambda each: each.latency_s,
    "prompt_token_count": lambda each: each.num_prompt_tokens,
    "output_token_count": lambda each: each.num_output_tokens,
    "total_token_count": lambda each: each.num_prompt_tokens + each.num_output_tokens,
    "time_to_first_token_ms": lambda each: 1e3 * each.ttft_s,
    "time_per_output_token_ms": lambda each: 1e3 * each.latency_s / each.num_output_tokens,
    "inter_token_latency_ms": lambda each: None if each.itl_s is None else 1e3 * each.itl_s,
}
_RATES = {
    "requests_per_second": "request_throughput", "output_tokens_per_second": "output_throughput",
    "tokens_per_second": "total_token_throughput", "request_concurrency": "mean_running",
}  # fmt: skip


def document(requests: Sequence[Sent], summary: Mapping[str, Any], started_s: float, ended_s: float) -> dict[str, Any]:
    """The report; of rates, which GuideLLM has distributions of, it has the means."""
    done = [each for each in requests if each.error is None]
    failed = [each for each in requests if each.error is not None]
    metrics: dict[str, Any] = {
        name: {"successful": _distribution([value for each in done if (value := of(each)) is not None])}
        for name, of in _METRICS.items()
    }
    metrics["inter_token_latency_ms"]["successful"] = _gaps(done)
    for name, ours in _RATES.items():
        if isinstance(rate := summary.get(ours), int | float):
            metrics[name] = {"successful": _distribution([rate])}
    totals = {"successful": len(done), "errored": len(failed), "incomplete": 0, "total": len(requests)}
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": _strategy(summary.get("config") or {}), "backend": {"model": summary.get("model")}},
        "start_time": started_s,
        "end_time": ended_s,
        "duration": ended_s - started_s,
        "metrics": {"request_totals": totals, **metrics},
        "requests": {
            "successful": [_request(each) for each in done],
            "errored": [_request(each) for each in failed],
            "incomplete": [],
            "total": None,
        },
    }
    return {
        "metadata": {"version": 2, "guidellm_version": "twinserve"},
        "config": {
            "spec": {"backend": {"kind": "openai_http", "model": summary.get("model")}, "data": [_data(requests)]}
        },
        "benchmarks": [benchmark],
    }


def _data(requests: Sequence[Sent]) -> dict[str, Any]:
    """The workload by its mean lengths."""
    prompts, outputs = ([getattr(each, f"num_{name}_tokens") for each in requests] for name in ("prompt", "output"))
    means = {"prompt_tokens": prompts, "output_tokens": outputs}
    return {"kind": "synthetic_text"} | {name: round(sum(each) / max(1, len(each))) for name, each in means.items()}


def _strategy(config: Mapping[str, Any]) -> dict[str, Any]:
    """How GuideLLM calls the arrivals, where it has such ones."""
    arrival = config.get("arrival") or {}
    kind, rate = arrival.get("kind"), arrival.get("rate")
    if kind == "closed_loop":
        return {"type_": "concurrent", "streams": arrival.get("concurrency")}
    names = {"constant": "constant", "poisson": "poisson", "all_at_once": "throughput"}
    return {"type_": names.get(str(kind), "trace"), "rate": rate}


def _request(each: Sent) -> dict[str, Any]:
    timings: dict[str, Any] = {
        "targeted_start": each.due_s, "request_start": each.start_s, "request_end": each.end_s
    }  # fmt: skip
    latencies: dict[str, Any] = {}
    if each.error is None:
        first = each.start_s + each.ttft_s
        names = ("first_request_iteration", "first_token_iteration", "first_output_token_iteration")
        timings |= {**dict.fromkeys(names, first), "last_token_iteration": each.end_s}
        timings |= {"last_request_iteration": each.end_s, "token_iterations": each.num_output_tokens}
        latencies = {name: of(each) for name, of in _METRICS.items() if name.endswith("_ms")}
    return {
        "type_": "generative_request_stats",
        "request_id": str(each.number),
        "info": {"status": "errored" if each.error else "completed", "error": each.error, "timings": timings},
        "request_start_time": each.start_s,
        "request_end_time": each.end_s,
        "request_latency": each.latency_s,
        "prompt_tokens": each.num_prompt_tokens,
        "output_tokens": each.num_output_tokens,
        **latencies,
    }


def _gaps(done: Sequence[Sent]) -> dict[str, Any]:
    """Each gap counts, as in GuideLLM: a request has as many as tokens after its first."""
    known = [(value, each.num_output_tokens - 1) for each in done if (value := each.itl_s) is not None]
    return _distribution(np.repeat([1e3 * value for value, _ in known], [count for _, count in known]))


def _distribution(values: Any) -> dict[str, Any]:
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return {"mean": 0.0, "median": 0.0, "std_dev": 0.0, "min": 0.0, "max": 0.0, "count": 0, "percentiles": {}}
    found = np.percentile(values, [*_PERCENTILES.values()]).tolist()
    return {
        "mean": float(values.mean()), "median": float(np.median(values)), "variance": float(values.var()),
        "std_dev": float(values.std()), "min": float(values.min()), "max": float(values.max()), "count": len(values),
        "total_sum": float(values.sum()), "percentiles": dict(zip(_PERCENTILES, found, strict=True)),
    }  # fmt: skip
