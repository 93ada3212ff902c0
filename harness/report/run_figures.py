"""Figures of one run: latency distributions and their tails, the run over time, and requests as points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.report.figure import Axis, Figure, Limit, Series
from harness.report.thinning import MOST_POINTS, SHARES, bin_edges, quantiles, tail_shares, thinned
from harness.report.words import LATENCIES, count, is_known
from harness.results.metrics import Window
from harness.results.servers import step_integral
from harness.results.tables import Floats, Gaps, RunResult

_MS = "0,0.[000]"
_COLORS = {"ttft": 0, "tpot": 1, "itl": 2, "e2el": 3}
_WITH_REQUESTS = ("ttft", "tpot", "e2el")


def counted(result: RunResult, summary: Mapping[str, Any]) -> pd.DataFrame:
    """The finished requests that arrived inside the summary's window, by arrival."""
    start, end = (np.float64(summary.get(key)) for key in ("window_start_s", "window_end_s"))
    requests = result.requests
    inside = Window(float(start), float(end)).contains(requests["arrival_time"].to_numpy(dtype=np.float64))
    found = requests[inside & (requests["status"] == "finished").to_numpy()]
    return found.sort_values("arrival_time", kind="stable")


def latency_figures(requests: pd.DataFrame, gaps: Gaps, limits: Mapping[str, float]) -> list[Figure]:
    """Cumulative distributions, and the shares of slower requests on a logarithmic axis."""
    pooled = {name: _equal_weights(requests[name]) for name in _WITH_REQUESTS}
    pooled = {"ttft": pooled["ttft"], "tpot": pooled["tpot"], "itl": gaps, "e2el": pooled["e2el"]}
    pooled = {name: values for name, values in pooled.items() if values.count}
    if not pooled:
        return []
    lines = [
        Limit(f"SLO {LATENCIES[name]} {limit:g} ms", "x", limit, f"color-{_COLORS[name]}")
        for name, limit in limits.items()
    ]
    body, tail = [], []
    for name, values in pooled.items():
        slower = tail_shares(values.count)
        body.append(_curve(LATENCIES[name], quantiles(values, SHARES), SHARES, _COLORS[name]))
        tail.append(_curve(LATENCIES[name], quantiles(values, 1 - slower), slower, _COLORS[name]))
    x = Axis("latency, ms", log=True, format=_MS)
    share = Axis("share of requests or gaps", format="0.[00]%", start=0, end=1.02)
    slower_axis = Axis("share that is slower", log=True, format="0.[00000]%")
    return [
        Figure("How long requests take", x, share, body, lines),
        Figure("The tail: how many take longer", x, slower_axis, tail, lines),
    ]


def request_figures(requests: pd.DataFrame, limits: Mapping[str, float]) -> list[Figure]:
    """TTFT of single requests over their arrival and over the length of their prompt."""
    requests = requests[requests["ttft"].to_numpy() > 0]
    if requests.empty:
        return []
    ttft = requests["ttft"].to_numpy(dtype=np.float64) * 1e3
    rows = thinned(ttft)
    some = requests.iloc[rows]
    lines = [Limit(f"SLO TTFT {limits['ttft']:g} ms", "y", limits["ttft"])] if "ttft" in limits else []
    texts = {
        "request": some["request_id"].astype(str).tolist(),
        "prompt": [count(each, "token") for each in some["num_prompt_tokens"]],
        "output": [count(each, "token") for each in some["num_output_tokens"]],
    }
    note = f"{len(rows):,} of {len(ttft):,} requests, the slowest among them" if len(ttft) > MOST_POINTS else ""
    y = Axis("TTFT, ms", log=True, format=_MS)
    arrival = requests["arrival_time"].to_numpy(dtype=np.float64)
    points = Series("requests", "points", arrival[rows], ttft[rows], 0, texts=texts)
    middle = _medians_over_time(arrival, ttft)
    prompts = Series("", "points", some["num_prompt_tokens"].to_numpy(), ttft[rows], 0, texts=texts)
    return [
        Figure("TTFT over time", Axis("arrival, s", format=_MS), y, [points, *middle], lines, note),
        Figure(
            "TTFT by length of the prompt", Axis("prompt, tokens", log=True, format="0,0"), y, [prompts], lines, note
        ),
    ]


def timeline_figures(result: RunResult, summary: Mapping[str, Any]) -> list[Figure]:
    """Throughput, requests in the engine, and use of the KV cache, in bins over time."""
    steps = result.steps
    if steps.empty:
        return []
    starts, durations = (steps[name].to_numpy(dtype=np.float64) for name in ("start_time", "duration"))
    end = float((starts + durations).max())
    if end <= 0:
        return []
    edges = bin_edges(end, len(steps))
    middle, width = (edges[1:] + edges[:-1]) / 2, float(edges[1])

    def total(amount: npt.NDArray[Any]) -> Floats:
        return np.diff(step_integral(steps, amount, edges))

    def mean(name: str) -> Floats:
        return total(steps[name].to_numpy() * durations) / width

    arrivals_end = [Limit("end of arrivals", "x", float(result.requests["arrival_time"].max()), "grey")]
    time = Axis("time, s", format=_MS, start=0, end=end)
    bins = f"Means over {width:.3g} s."

    def panel(title: str, label: str, series: list[Series], *limits: Limit, form: str = "0,0.[0]") -> Figure:
        y = Axis(label, format=form, start=0)
        return Figure(title, time, y, series, [*arrivals_end, *limits], bins, wide=True, height=190, group="time")

    output = (total(_decoded(steps)) + _first_tokens(result, edges)) / width
    prefill = total(steps["num_prefill_tokens"].to_numpy()) / width
    seats = (summary.get("config") or {}).get("max_num_seqs")
    running = mean("num_running")
    seats = seats and seats * result.num_servers
    full = [Limit(f"max_num_seqs {seats}", "y", seats)] if is_known(seats) and running.max() > 0.5 * seats else []
    blocks = result.fleet_blocks
    preempted = total(steps["num_preempted"].to_numpy()) / width
    events = [Series("preemptions per s", "area", middle, preempted, 7)] if preempted.any() else []
    return [
        panel(
            "Throughput", "tokens/s",
            [Series("output", "area", middle, output, 0), Series("prefill", "line", middle, prefill, 4)],
        ),
        panel(
            "Requests in the engine", "requests",
            [Series("running", "area", middle, running, 2), Series("waiting", "line", middle, mean("num_waiting"), 1)],
            *full,
        ),
        panel(
            "KV cache in use", "share of blocks",
            [Series("in use", "area", middle, mean("num_used_blocks") / blocks, 3)],
            *([Limit("whole pool", "y", 1.0)] if steps["num_used_blocks"].max() > 0.5 * result.pool_blocks else []),
            form="0.[0]%",
        ),
        *([panel("Preemptions", "per s", events, form="0.[00]")] if events else []),
    ]  # fmt: skip


def _curve(name: str, latency_ms: Floats, shares: Floats, color: int) -> Series:
    drawn = latency_ms > 0
    return Series(name, "line", latency_ms[drawn], shares[drawn], color)


def _equal_weights(seconds: pd.Series[Any]) -> Gaps:
    values = seconds.dropna().to_numpy(dtype=np.float64)
    return Gaps(values, np.ones(len(values), dtype=np.int64))


def _decoded(steps: pd.DataFrame) -> npt.NDArray[Any]:
    """Tokens that decodes gave, by step. Steps of older results do not tell accepted drafts."""
    accepted = steps["num_accepted_tokens"].to_numpy() if "num_accepted_tokens" in steps else 0
    return np.asarray(steps["num_decode_seqs"].to_numpy() + accepted)


def _first_tokens(result: RunResult, edges: Floats) -> npt.NDArray[Any]:
    """First tokens of requests, which prefills give, by bin."""
    times = np.sort(result.requests["first_token_time"].dropna().to_numpy(dtype=np.float64))
    return np.diff(np.searchsorted(times, edges, side="right"))


def _medians_over_time(arrival_s: Floats, ttft_ms: Floats) -> list[Series]:
    """Medians of equally many requests each, where there are enough for a line."""
    parts = min(40, len(ttft_ms) // 25)
    if parts < 4:
        return []
    groups = np.array_split(np.arange(len(ttft_ms)), parts)
    middles, medians = (np.array([np.median(values[group]) for group in groups]) for values in (arrival_s, ttft_ms))
    return [Series("median", "line", middles, medians, 1)]
