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
    """Over the time between `start` and `end`, on the servers that the steps are of."""
    steps = result.steps
    requests = _of_servers(result)
    begins, ends = _first_waits(requests)
    inside = np.clip(np.minimum(ends, end) - np.maximum(begins, start), 0.0, None)
    first = ratio(float(inside.sum()), end - start)
    if not steps["num_preempted"].any() and "prefill_server" not in requests:
        return first
    return first + levels(steps, _waiting_again(result, requests)).mean(start, end)


def _of_servers(result: RunResult) -> pd.DataFrame:
    """The requests that wait first for the servers that `result` is of; all where it is of all."""
    servers = result.meta.get("only_servers")
    return result.requests if servers is None else result.requests[_first_server(result.requests).isin(servers)]


def _first_server(requests: pd.DataFrame) -> pd.Series:
    """The server that computes the prompt, where another one computes the answer, or the one that computes both."""
    if "prefill_server" not in requests:
        return requests["server"]
    return requests["prefill_server"].where(requests["prefill_server"] >= 0, requests["server"])


def _first_waits(requests: pd.DataFrame) -> tuple[Floats, Floats]:
    """When requests come and are first scheduled, or end without; infinity for those that never do."""
    came = requests[(requests["status"] != "rejected") & requests["arrival_time"].notna()]
    ends = came["first_scheduled_time"].fillna(came["finish_time"]).fillna(np.inf)
    return floats(came, "arrival_time"), ends.to_numpy(dtype=np.float64)


def _waiting_again(result: RunResult, requests: pd.DataFrame) -> Ints:
    """Of each step, the sequences that it left waiting after they had run, on this server or on one for prompts: those
    that are left when the requests that had not run by then are taken off."""
    steps = result.steps
    again = steps["num_waiting"].to_numpy(dtype=np.int64).copy()
    servers = by_server(steps)
    for server, rows in servers:
        own = requests[_first_server(requests) == server] if len(servers) > 1 else requests
        begins, ends = (np.sort(times) for times in _first_waits(own))
        starts = floats(steps, "start_time")[rows]
        planned = np.concatenate([starts[:1], starts[:-1]]) if _plans_ahead(result, server) else starts
        came, scheduled = np.searchsorted(begins, planned, "right"), np.searchsorted(ends, planned, "right")
        again[rows] -= np.maximum(came - scheduled, 0)
    return np.maximum(again, 0)


def _plans_ahead(result: RunResult, server: int) -> bool:
    """Whether a step of a server is planned when the one before begins."""
    for pool in result.pools:
        if server in pool["servers"] and "plans_ahead" in pool:
            return bool(pool["plans_ahead"])
    scheduler = (result.meta.get("config") or {}).get("scheduler") or {}
    return bool(scheduler.get("async_scheduling"))
