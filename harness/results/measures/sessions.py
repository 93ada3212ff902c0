"""Latencies and cache hits of each session, and of each turn of all sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.results.columns import floats
from harness.results.statistics.latencies import percentile_name
from harness.results.tables import Rows
from simulator.table import frame_of

if TYPE_CHECKING:
    import pandas as pd


def session_table(requests: Rows) -> pd.DataFrame | None:
    """A row per session of the requests table, by its id; None where no session has several requests.

    Columns: session_id, num_requests, num_finished; start_time, finish_time and duration from the first arrival to the
    last answer (s, NaN unless all are finished); num_prompt_tokens, num_output_tokens and num_cached_tokens of those
    that are finished; hit_rate; mean_ttft (s).
    """
    if "session_id" not in requests or len(np.unique(requests["session_id"].to_numpy())) == len(requests):
        return None
    requests = frame_of(requests)
    finished = (requests["status"] == "finished").to_numpy()
    counts = ["num_prompt_tokens", "num_output_tokens", "num_cached_tokens"]
    own = requests[["session_id", "arrival_time", "finish_time", "ttft", *counts]].assign(num_finished=finished)
    own.loc[~finished, [*counts, "ttft"]] = math.nan
    groups = own.groupby("session_id")
    table = groups[["num_finished", *counts]].sum().astype(np.int64)
    table.insert(0, "num_requests", groups.size())
    table["start_time"] = groups["arrival_time"].min()
    table["finish_time"] = groups["finish_time"].max().where(table["num_finished"] == table["num_requests"])
    table["duration"] = table["finish_time"] - table["start_time"]
    table["hit_rate"] = table["num_cached_tokens"] / table["num_prompt_tokens"].where(table["num_prompt_tokens"] > 0)
    if own["num_cached_tokens"].isna().to_numpy()[finished].any():  # a client is not told
        table["hit_rate"] = math.nan
    table["mean_ttft"] = groups["ttft"].mean()
    return table.reset_index()


def session_metrics(requests: Rows, percentiles: Sequence[float]) -> dict[str, Any]:
    """Statistics of the sessions that were served whole, and a row for each turn; nothing without sessions."""
    table = session_table(requests)
    if table is None:
        return {}
    whole = table[table["duration"].notna()]
    duration, hits = floats(whole, "duration"), floats(whole, "hit_rate")
    known = len(whole) > 0
    cuts = np.percentile(duration, [50, *percentiles]) if known else np.full(len(percentiles) + 1, math.nan)
    names = ["median", *map(percentile_name, percentiles)]
    return {
        "num_sessions": len(table),
        "completed_sessions": len(whole),
        "mean_session_requests": float(table["num_requests"].mean()),
        "mean_session_s": float(duration.mean()) if known else math.nan,
        **{f"{name}_session_s": float(cut) for name, cut in zip(names, cuts, strict=True)},
        "median_session_hit_rate": float(np.median(hits)) if known else math.nan,
        "turns": _turns(requests, percentiles),
    }


def _turns(requests: Rows, percentiles: Sequence[float]) -> list[dict[str, Any]]:
    """Of the turns 1, 2, 3 to 4, 5 to 8 and so on, the finished requests: how many, latencies in ms, cache hits."""
    finished = requests[(requests["status"] == "finished").to_numpy()]
    turn = finished["turn"].to_numpy(dtype=np.int64)
    doubling = np.ceil(np.log2(turn + 1)).astype(np.int64)
    found = []
    for number in np.unique(doubling).tolist():
        own = finished[doubling == number]
        prompt, cached = own["num_prompt_tokens"].sum(), own["num_cached_tokens"].to_numpy(dtype=np.float64).sum()
        row = {"first": 1 if not number else 2 ** (number - 1) + 1, "last": 2**number, "num_requests": len(own)}
        for name in ("ttft", "tpot"):
            seconds = floats(own, name)[~np.isnan(floats(own, name))]
            cuts = np.percentile(seconds, [50, *percentiles]) if len(seconds) else [math.nan] * (len(percentiles) + 1)
            names = ["median", *map(percentile_name, percentiles)]
            row |= {f"{each}_{name}_ms": float(cut) * 1e3 for each, cut in zip(names, cuts, strict=True)}
        found.append({**row, "prefix_cache_hit_rate": float(cached / prompt) if prompt else math.nan})
    return found
