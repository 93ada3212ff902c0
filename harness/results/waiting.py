"""How many requests wait, from when they arrive: steps say only how many they left waiting, as they were planned.

waiting at a time = requests between their arrival and their first step
                  + sequences that gave way and are not admitted again
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.results.columns import floats, ratio
from harness.results.servers import by_server, levels
from harness.results.tables import Floats, Ints, RunResult


def mean_waiting(result: RunResult, start: float, end: float) -> float:
    """Over the time between `start` and `end`, on all servers."""
    begins, ends = _first_waits(result.requests)
    inside = np.clip(np.minimum(ends, end) - np.maximum(begins, start), 0.0, None)
    again = (
        levels(result.steps, _waiting_again(result)).mean(start, end) if result.steps["num_preempted"].any() else 0.0
    )
    return ratio(float(inside.sum()), end - start) + again


def _first_waits(requests: pd.DataFrame) -> tuple[Floats, Floats]:
    """When requests come and are first scheduled, or end without; infinity for those that never do."""
    came = requests[(requests["status"] != "rejected") & requests["arrival_time"].notna()]
    ends = came["first_scheduled_time"].fillna(came["finish_time"]).fillna(np.inf)
    return floats(came, "arrival_time"), ends.to_numpy(dtype=np.float64)


def _waiting_again(result: RunResult) -> Ints:
    """Of each step, the sequences that it left waiting after they had run: those that are left when the requests that
    had not run by then are taken off."""
    steps = result.steps
    again = steps["num_waiting"].to_numpy(dtype=np.int64).copy()
    servers = by_server(steps)
    for server, rows in servers:
        requests = result.requests
        if len(servers) > 1:
            requests = requests[requests["server"] == server]
        begins, ends = (np.sort(times) for times in _first_waits(requests))
        starts = floats(steps, "start_time")[rows]
        planned = np.concatenate([starts[:1], starts[:-1]]) if _plans_ahead(result) else starts
        came, scheduled = np.searchsorted(begins, planned, "right"), np.searchsorted(ends, planned, "right")
        again[rows] -= np.maximum(came - scheduled, 0)
    return np.maximum(again, 0)


def _plans_ahead(result: RunResult) -> bool:
    """Whether a step is planned when the one before begins."""
    scheduler = (result.meta.get("config") or {}).get("scheduler") or {}
    return bool(scheduler.get("async_scheduling"))
