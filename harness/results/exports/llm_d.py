"""The benchmark report of llm-d-benchmark, version 0.2 (`BenchmarkReportV02`): aggregates, no requests."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from harness.results.tables import Floats

_PERCENTILES = {
    "p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p99p9": 99.9,
}  # fmt: skip
_LATENCIES = {"time_to_first_token": ("ttft", "s"), "time_per_output_token": ("tpot", "s/token"),
              "request_latency": ("e2el", "s")}  # fmt: skip
_RATES = {
    "request_rate": ("request_throughput", "queries/s"), "output_token_rate": ("output_throughput", "tokens/s"),
    "total_token_rate": ("total_token_throughput", "tokens/s"),
}  # fmt: skip


def document(requests: pd.DataFrame, summary: Mapping[str, Any], started_s: float, ended_s: float) -> dict[str, Any]:
    """The report. Latencies count from when a request was sent, without how late the client was."""
    arrived = requests[requests["arrival_time"].notna()]
    done = arrived[arrived["status"] == "finished"]
    lag = done["replay_lag"].fillna(0.0).where(done["ttft"].notna())
    seen = {"ttft": done["ttft"] - lag, "tpot": done["tpot"], "e2el": done["e2el"] - lag}
    config = summary.get("config") or {}
    arrival = config.get("arrival") or {}
    standardized = {
        "tool": "twinserve",
        "tool_version": str((summary.get("environment") or {}).get("twinserve")),
        "source": "random" if summary.get("trace") == "synthetic" else "sampled",
        "input_seq_len": {"distribution": "other", "value": float(arrived["num_prompt_tokens"].mean())},
        "rate_qps": arrival.get("rate"),
        "concurrency": arrival.get("concurrency"),
    }
    aggregate = {
        "requests": {
            "total": len(arrived),
            "failures": len(arrived) - len(done),
            "input_length": _statistics(done["num_prompt_tokens"].to_numpy(np.float64), "count"),
            "output_length": _statistics(done["num_output_tokens"].to_numpy(np.float64), "count"),
        },
        "latency": {
            name: _statistics(seen[ours].dropna().to_numpy(np.float64), unit)
            for name, (ours, unit) in _LATENCIES.items()
            if seen[ours].notna().any()
        },
        "throughput": {
            name: {"units": unit, "mean": float(summary[ours])}
            for name, (ours, unit) in _RATES.items()
            if summary.get(ours) is not None
        },
    }
    return {
        "version": "0.2",
        "run": {
            "uid": str(uuid.uuid4()),
            "description": "simulated" if summary.get("simulated") else "measured",
            "time": {"start": _date(started_s), "end": _date(ended_s), "duration": f"PT{summary['duration']}S"},
        },
        "scenario": {
            "load": {
                "metadata": {"schema_version": "0.0.1"},
                "standardized": {key: each for key, each in standardized.items() if each is not None},
                "native": {"args": {"arrival": arrival, "trace": config.get("trace")}},
            }
        },
        "results": {"request_performance": {"aggregate": aggregate}},
    }


def _statistics(values: Floats, units: str) -> dict[str, Any]:
    if not len(values):
        return {"units": units, "mean": 0.0}
    found = np.percentile(values, [*_PERCENTILES.values()]).tolist()
    moments = {"mean": float(values.mean()), "stddev": float(values.std())}
    ends = {"min": float(values.min()), "max": float(values.max())}
    return {"units": units, **moments, **ends, **dict(zip(_PERCENTILES, found, strict=True))}


def _date(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()
