"""Servers that come and go: how many there were, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.results.columns import ratio
from harness.results.measures.servers import Levels
from harness.results.tables import RunResult


def server_levels(result: RunResult) -> tuple[Levels, Levels] | None:
    """How many servers took requests, and how many were paid for; None where there always were as many."""
    counts = result.meta.get("server_counts")
    if not counts:
        return None
    end = max(float(result.meta["run_time_s"]), counts[-1][0])
    begins, num_open, num_paid = np.array(counts, dtype=np.float64).T
    durations = np.diff(begins, append=end)
    return Levels(begins, durations, num_open), Levels(begins, durations, num_paid)


def staffing_metrics(result: RunResult, start_s: float, duration_s: float) -> Mapping[str, Any]:
    """Between two times; nothing where there always were as many servers. Costs in US dollars are of the GPUs paid for,
    from the decision to start a server until its last request has ended."""
    found = server_levels(result)
    if found is None:
        return {}
    end_s = start_s + duration_s
    mean_open, mean_paid = (each.mean(start_s, end_s) for each in found)
    gpus = (result.meta.get("num_gpus") or 1) / result.num_servers
    gpu_hours = mean_paid * gpus * duration_s / 3600
    price = ((result.meta.get("config") or {}).get("device") or {}).get("price_per_gpu_hour")
    finished = result.request_rows[(result.request_rows["status"] == "finished").to_numpy()]
    tokens = int(finished["num_output_tokens"].sum())
    cost = None if price is None else gpu_hours * price
    return {
        "mean_servers": mean_open,
        "mean_paid_servers": mean_paid,
        "max_paid_servers": found[1].peak(start_s, end_s),
        "gpu_hours": gpu_hours,
        "cost": cost,
        "cost_per_million_tokens": None if cost is None else ratio(cost * 1e6, tokens),
    }
