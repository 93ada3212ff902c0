"""How many requests wait, from when they arrive: steps say only how many they left waiting, as they were planned.

waiting at a time = requests between their arrival and their first step
                  + sequences that gave way and are not admitted again
"""

from __future__ import annotations

import numpy as np

from harness.results.columns import floats, ratio
from harness.results.measures.servers import by_server, levels
from harness.results.tables import Floats, Ints, Rows, RunResult


def mean_waiting(result: RunResult, start: float, end: float) -> float:
    """Over the time between `start` and `end`, on the servers that the steps are of."""
    steps = result.step_rows
    requests = _of_servers(result)
    begins, ends = _first_waits(requests)
    inside = np.clip(np.minimum(ends, end) - np.maximum(begins, start), 0.0, None)
    first = ratio(float(inside.sum()), end - start)
    if not steps["num_preempted"].any() and "prefill_server" not in requests:
        return first
    return first + levels(steps, _waiting_again(result, requests)).mean(start, end)


def _of_servers(result: RunResult) -> Rows:
    """The requests that wait first for the servers that `result` is of; all where it is of all."""
    servers = result.meta.get("only_servers")
    requests = result.request_rows
    return requests if servers is None else requests[np.isin(_first_server(requests), servers)]


def _first_server(requests: Rows) -> Ints:
    """The server that computes the prompt, where another one computes the answer, or the one that computes both."""
    servers: Ints = requests["server"].to_numpy()
    if "prefill_server" not in requests:
        return servers
    of_prompts = requests["prefill_server"].to_numpy()
    return np.where(of_prompts >= 0, of_prompts, servers)


def _first_waits(requests: Rows) -> tuple[Floats, Floats]:
    """When requests come and are first scheduled, or end without; infinity for those that never do."""
    arrival = floats(requests, "arrival_time")
    came = (requests["status"] != "rejected").to_numpy() & ~np.isnan(arrival)
    ends = floats(requests, "first_scheduled_time")[came]
    ends = np.where(np.isnan(ends), floats(requests, "finish_time")[came], ends)
    return arrival[came], np.where(np.isnan(ends), np.inf, ends)


def _waiting_again(result: RunResult, requests: Rows) -> Ints:
    """Of each step, the sequences that it left waiting after they had run, on this server or on one for prompts: those
    that are left when the requests that had not run by then are taken off."""
    steps = result.step_rows
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
