"""Whether a run was overloaded: whether the queue of a longer run at the same rate would grow without end.

The offered load as a share of capacity (`demand`) decides, since the queue of a short run does not: it
also grows for a while at 0.9 of capacity, and may be short at 1.1. In a long run the number of requests in the system
overrules the estimate: it grows all the time although the load seems below capacity, or does not although above.
How often verdicts are right: `experiments/results/verdict.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from harness.results.columns import floats
from harness.results.measures.demand import offered_load
from harness.results.measures.servers import levels_of
from harness.results.statistics.warming import warming_of
from harness.results.tables import Rows, RunResult

Verdict = Literal["stable", "overloaded", "unclear", "closed"]

_DRAWN = ("poisson", "gamma", "constant")  # kinds of arrivals whose rate is configured
_OPEN = (*_DRAWN, "trace")  # kinds of arrivals that have a rate whatever the system does
# Estimates of the load are 2 % too low rather than too high near capacity, and 2 % off from 500 requests on.
_CRITICAL, _MARGIN, _MARGIN_REQUESTS = 0.96, 0.02, 500
_RAMP_UP, _NUM_SPANS = 0.2, 8  # share of the arrival window before the spans whose growth is compared
_FEWEST = 20  # requests from which a run can be overloaded
_SURE_GROWTH = 4.0  # Student's t of the growth per span, of 8 spans: 0.3 % by chance


@dataclass(frozen=True)
class Judgement:
    """offered_load: share of capacity, NaN where it is not known. num_waiting: when the last request arrived."""

    verdict: Verdict
    offered_load: float
    num_waiting: int

    def notes(self) -> list[str]:
        """What a reader of the latencies must know."""
        if self.verdict != "overloaded":
            return []
        if self.num_waiting:
            return [f"overloaded: the queue grew to {self.num_waiting:,}; latencies measure how long the run was"]
        share = f"{self.offered_load:.0%} of capacity"
        return [f"overloaded: about {share} arrives, and a longer run would have a queue that grows without end"]


def judge(result: RunResult, requests: Rows) -> Judgement:
    """The verdict on the arrivals of `requests`, those of the run that count.

    stable: the queue of a long run stays bounded. overloaded: it does not. unclear: the load is too near to capacity to
    tell from this run, its prefix caches were still filling when it ended and it would be overloaded without them, too
    few requests count, or the run ended early. closed: arrivals wait for the system
    (closed loop, sessions) or all come at once, so that no rate is offered.
    """
    arrival = np.sort(floats(requests, "arrival_time"))
    arrival = arrival[~np.isnan(arrival)]
    is_open = result.meta.get("open_loop", result.meta.get("arrival") in _OPEN)
    if is_open and len(arrival) < 2:
        return Judgement("unclear", math.nan, 0)
    if not is_open or not arrival[-1] > arrival[0]:
        return Judgement("closed", math.nan, 0)
    window = arrival[-1] - arrival[0]
    rate = _configured_rate(result.meta) or (len(arrival) - 1) / window
    warming = warming_of(result.request_rows)
    load = _load(result, requests, rate, warming.factor) if result.complete else math.nan
    verdict = _verdict(result, arrival, load)
    if verdict == "overloaded" and not warming.is_over and not _load(result, requests, rate, 0.0) > _CRITICAL:
        verdict = "unclear"
    return Judgement(verdict, load, _waiting_at(result.step_rows, arrival[-1]))


def _load(result: RunResult, requests: Rows, rate: float, prefill_share: float) -> float:
    """The load of the busiest pool; where pools differ and all serve, each server is taken to get an equal share."""
    if not result.pools:
        return offered_load(result, requests, rate, prefill_share)
    if any(pool["role"] == "serve" for pool in result.pools):
        num_servers = result.num_servers
        rates = [rate * len(pool["servers"]) / num_servers for pool in result.pools]
    else:
        rates = [rate] * len(result.pools)
    loads = [
        offered_load(result.of_servers(pool["servers"]), requests, of_pool, prefill_share)
        for pool, of_pool in zip(result.pools, rates, strict=True)
    ]
    return float(np.nanmax(loads)) if not np.isnan(loads).all() else math.nan


def _configured_rate(meta: Mapping[str, Any]) -> float | None:
    """The rate of a drawn arrival process, in requests/s; that of the drawn times differs from it by chance."""
    arrival = (meta.get("config") or {}).get("arrival") or {}
    rate: float | None = arrival.get("rate") if arrival.get("kind") in _DRAWN else None
    return rate


def _verdict(result: RunResult, arrival: np.ndarray[Any, np.dtype[np.float64]], load: float) -> Verdict:
    """arrival: times in s, ascending."""
    num_arrivals = len(arrival)
    if num_arrivals < _FEWEST and not load < _CRITICAL:
        return "unclear"  # so few say nothing of a queue that grows
    growth, student = _growth(result, arrival)
    # where nothing tells what waits, the requests that have not ended do
    is_seen = not result.are_steps_sampled or len(result.step_rows) > 0
    backed_up = _share_backed_up(result.step_rows, (arrival[0] + arrival[-1]) / 2, arrival[-1]) if is_seen else 1.0
    if growth > 0.05 * num_arrivals and student > _SURE_GROWTH and backed_up > 0.95:
        return "overloaded"
    margin = _MARGIN * max(1.0, math.sqrt(_MARGIN_REQUESTS / num_arrivals))
    if math.isnan(load) or abs(load - _CRITICAL) <= margin:
        return "unclear"
    if load < _CRITICAL:
        return "stable"
    expected = (1 - min(1 / load, 1.0)) * (1 - _RAMP_UP) * num_arrivals
    chance = 3 * math.sqrt(num_arrivals)
    return "stable" if growth < expected / 4 and chance < expected / 2 else "overloaded"


def _growth(result: RunResult, arrival: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """By how much the number of requests in the system grew after the ramp-up, and Student's t of its growth in spans
    of equal length."""
    edges = np.linspace(arrival[0] + _RAMP_UP * (arrival[-1] - arrival[0]), arrival[-1], _NUM_SPANS + 1)
    came = floats(result.request_rows, "arrival_time")
    # rejected and aborted requests leave at once, those that were not finished stay
    left = np.where(result.request_rows["status"] == "unfinished", math.inf, floats(result.request_rows, "finish_time"))
    left = np.where(np.isnan(left), came, left)
    inside = np.searchsorted(np.sort(came), edges, side="right") - np.searchsorted(np.sort(left), edges, side="right")
    grown = np.diff(inside)
    deviation = float(grown.std(ddof=1))
    student = float(grown.mean()) / (deviation / math.sqrt(_NUM_SPANS)) if deviation else math.inf
    return float(inside[-1] - inside[0]), student


def _share_backed_up(steps: Rows, start: float, end: float) -> float:
    """Share of a time in which a server left requests waiting."""
    waiting = levels_of(steps, "num_waiting")
    durations = waiting.ends.clip(start, end) - waiting.begins.clip(start, end)
    return float(durations[waiting.values > 0].sum()) / (end - start)


def _waiting_at(steps: Rows, time: float) -> int:
    """Requests that the last steps of all servers that began by then left waiting."""
    waiting = levels_of(steps, "num_waiting")
    before = int(np.searchsorted(waiting.begins, time, side="right"))
    return int(waiting.values[before - 1]) if before else 0
