"""Metric definitions: from the tables of one run to one flat summary.

TTFT = first token - intended arrival. E2EL = last token - intended arrival. TPOT = (last - first token) / (n - 1),
undefined for n = 1. A request of several sequences has its first token when any of them has one, ends with the last of
them, and `n` of its TPOT are the tokens of one sequence; throughput counts the tokens of all. ITL = each gap between
consecutive tokens, of which those that speculation brings with one step count as one. Queue time = first scheduled -
intended arrival. Draft acceptance rate = accepted / drafted tokens.
Names follow `vllm bench serve` where it has one. Latencies, token counts and goodput are those of finished requests;
ITL pools the gaps of all requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config import MetricsConfig
from harness.results.columns import floats, known_total, nan_max, nan_min, ratio, rows_where, total
from harness.results.load import load_of
from harness.results.measures.engine_metrics import engine_metrics
from harness.results.measures.sessions import session_metrics
from harness.results.measures.slo import goodput, limits_ms, verdict_on_slo
from harness.results.measures.staffing import staffing_metrics
from harness.results.measures.unserved import notes_on, num_cut
from harness.results.measures.verdict import judge
from harness.results.statistics.latencies import LATENCIES, latencies
from harness.results.tables import Floats, Rows, RunResult

Bools = npt.NDArray[np.bool_]

_OF_FINISHED = ["arrival_time", "finish_time", "num_prompt_tokens", "num_output_tokens", *LATENCIES]
_HITS = ["num_cached_tokens", "num_host_cached_tokens", "num_disk_cached_tokens", "num_store_cached_tokens"]
HEADLINE = ("engine", "simulated", "model", "device", "trace", "arrival", "policy", "block_size", "num_blocks")


@dataclass(frozen=True)
class Window:
    """The intended arrival times, in s, between which a request counts, both ends included; NaN where no time is."""

    start_s: float
    end_s: float

    def contains(self, arrival_s: Floats) -> Bools:
        """bool[n]. Requests without an arrival time (NaN), which an interrupted run never sent, are kept."""
        return np.isnan(arrival_s) | ((arrival_s >= self.start_s) & (arrival_s <= self.end_s))


def summarize(result: RunResult, config: MetricsConfig) -> dict[str, Any]:
    """All metrics of a run as a dict that JSON can hold: what is undefined is None.

    Starts with the keys in `HEADLINE`, followed by the rest of `result.meta` (of which some may be nested) and the
    metrics, which are flat. Only requests that arrive inside the window count, and engine metrics are those between the
    first arrival and the last completion among them; gaps have no arrival time, so ITL covers the whole run, and a
    note says so when the window cuts anything.
    """
    assert isinstance(result.meta.get("simulated"), bool), "a result must say whether it was simulated"
    arrival = floats(result.request_rows, "arrival_time")
    window = window_of(arrival, config)
    requests = rows_where(window.contains(arrival), result.request_rows)
    finished = rows_where((requests["status"] == "finished").to_numpy(), requests[_OF_FINISHED])
    start = nan_min(floats(requests, "arrival_time"))
    duration = nan_max(floats(finished, "finish_time")) - start
    excluded = len(result.request_rows) - len(requests)
    percentiles = config.percentiles
    if limits_ms(config.slo):
        percentiles = tuple(dict.fromkeys((*percentiles, config.slo.percentile)))
    load = load_of(result, requests)
    judgement = judge(result, requests)
    metrics = {
        "complete": result.complete,
        "verdict": judgement.verdict,
        "offered_load": judgement.offered_load,
        **asdict(load),
        "window_start_s": window.start_s,
        "window_end_s": window.end_s,
        "num_excluded": excluded,
        **_throughput(requests, finished, duration),
        **goodput(requests, duration, config.slo),
        **verdict_on_slo(requests, config.slo, overloaded=judgement.verdict == "overloaded", complete=result.complete),
        **latencies(finished, result.gaps, percentiles, judgement.offered_load),
        **_cache_and_preemptions(requests),
        **engine_metrics(result, start, duration),
        **_replay_lag(requests),
        **session_metrics(requests, percentiles),
    }
    metrics |= _per_gpu_and_user(metrics, result.meta.get("num_gpus") or result.meta.get("tensor_parallel_size", 1))
    if "prefill_server" in requests:
        metrics |= _handed_over(result, requests)
    metrics |= staffing_metrics(result, start, duration)
    if result.num_servers > 1:
        metrics["servers"] = _of_servers(result, requests, start, duration)
        comes_and_goes = "server_counts" in result.meta
        metrics["request_imbalance"] = math.nan if comes_and_goes else _imbalance(metrics["servers"])
    notes = [*notes_on(result, requests), *result.meta.get("notes", ()), *judgement.notes()]
    if excluded == len(result.request_rows):
        notes.insert(0, left_out_text(config))
    elif excluded:
        notes.append("ITL covers the whole run: token gaps are pooled, so the warm-up/drain window does not cut them")
    own = {"block_size": result.block_size, "num_blocks": result.num_blocks}
    return json_ready({**dict.fromkeys(HEADLINE), **result.meta, **own, "notes": notes, **metrics})


def json_ready(value: Any) -> Any:
    """The same value in what JSON knows: numpy scalars as Python's, tuples as lists, non-finite numbers as None.

    Raises TypeError for a type that has no obvious counterpart.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_ready(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot store a {type(value).__name__} in JSON: {value!r}")


def window_of(arrival: Floats, config: MetricsConfig) -> Window:
    """What `config` leaves of the time between the first and the last arrival; arrivals in s."""
    start, end = nan_min(arrival) + config.warmup, nan_max(arrival) - config.drain
    return Window(start, end) if start <= end else Window(math.nan, math.nan)


def left_out_text(config: MetricsConfig) -> str:
    """In one line, that no request counts."""
    return (
        f"no request counts: metrics.warmup={config.warmup:g} and metrics.drain={config.drain:g} leave nothing of the "
        "time in which requests arrive"
    )


def _throughput(requests: Rows, finished: Rows, duration: float) -> dict[str, Any]:
    inputs, outputs = total(finished, "num_prompt_tokens"), total(finished, "num_output_tokens")
    return {
        "num_prompts": len(requests),
        "duration": duration,
        "completed": len(finished),
        "failed": len(requests) - len(finished),
        **{name: _num_of(requests, name) for name in ("rejected", "aborted", "unfinished")},
        "truncated": num_cut(requests),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": ratio(len(finished), duration),
        "output_throughput": ratio(outputs, duration),
        "total_token_throughput": ratio(inputs + outputs, duration),
    }


def _num_of(requests: Rows, status: str) -> int:
    return int((requests["status"] == status).to_numpy().sum())


def _per_gpu_and_user(metrics: Mapping[str, Any], num_gpus: int) -> dict[str, Any]:
    """Throughput per GPU, and output tokens/s that a user sees after the first one, at the median."""
    return {
        "num_gpus": num_gpus,
        "output_throughput_per_gpu": metrics["output_throughput"] / num_gpus,
        "interactivity": ratio(1e3, metrics["median_tpot_ms"]),
    }


def _cache_and_preemptions(requests: Rows) -> dict[str, Any]:
    is_known, is_told = (~np.isnan(floats(requests, name)) for name in ("first_scheduled_time", "num_preemptions"))
    told = ["num_prompt_tokens", *(name for name in _HITS if name in requests)]
    admitted = rows_where(is_known | ~is_told, requests[told])
    prompt = total(admitted, "num_prompt_tokens")

    def hit_rate(name: str) -> float:
        return ratio(known_total(admitted, name), prompt)

    return {
        "prefix_cache_hit_rate": hit_rate("num_cached_tokens"),
        "host_hit_rate": hit_rate("num_host_cached_tokens"),
        "disk_hit_rate": hit_rate("num_disk_cached_tokens"),
        **({"store_hit_rate": hit_rate("num_store_cached_tokens")} if "num_store_cached_tokens" in admitted else {}),
        "parked_s": float(floats(requests, "parked_time").sum()),
        "recomputed_tokens": known_total(requests, "num_recomputed_tokens"),
        "preemptions": known_total(requests, "num_preemptions"),
        "swapped_preemptions": known_total(requests, "num_swaps"),
        "partial_preemptions": known_total(requests, "num_partial_preemptions"),
        "preempted_requests": known_total(requests.assign(is_hit=requests["num_preemptions"].clip(0, 1)), "is_hit"),
    }


def _handed_over(result: RunResult, requests: Rows) -> dict[str, Any]:
    """Of requests whose prompt another server computed: how many, and mean times in ms: of the prompt, from its end to
    the first token, and of these how long the KV took to come."""
    apart = requests[(requests["prefill_server"] >= 0).to_numpy()]
    prompt_s = floats(apart, "prefill_end_time") - floats(apart, "first_scheduled_time")
    parked_s = floats(apart, "parked_time")
    after_s = floats(apart, "first_token_time") - floats(apart, "prefill_end_time")
    times = {"prefill": prompt_s, "handover": after_s, "kv_transfer": parked_s}
    if not len(apart):
        return {"handed_over": 0, **{f"mean_{name}_ms": math.nan for name in times}}
    return {"handed_over": len(apart), **{f"mean_{name}_ms": 1e3 * float(s.mean()) for name, s in times.items()}}


def _server_of(requests: Rows, role: str) -> npt.NDArray[np.int64]:
    """Of each request the number of its server with this role, or -1; the column may be missing."""
    if role == "prefill" and "prefill_server" not in requests:
        return np.full(len(requests), -1)
    servers: npt.NDArray[np.int64] = requests["prefill_server" if role == "prefill" else "server"].to_numpy()
    return servers


_OF_A_SERVER = (
    "completed", "output_throughput", "prefix_cache_hit_rate", "preemptions", "num_steps", "mean_kv_cache_usage",
    "max_kv_cache_usage", "mean_running", "mean_waiting", "max_waiting",
)  # fmt: skip


def _of_servers(result: RunResult, requests: Rows, start: float, duration: float) -> list[dict[str, Any]]:
    """Of each server the `requests` that it served, of those that count, and its own metrics.

    A server for prompts served the requests whose prompts it computed. The row of one idle server is that of all with
    its role, as there may be hundreds.
    """
    found: list[dict[str, Any]] = []
    busy, idle = set(result.step_rows["server"].tolist()), dict[str, dict[str, Any]]()
    roles = {number: pool["role"] for pool in result.pools for number in pool["servers"]}
    for number in range(result.num_servers):
        role = roles.get(number, "serve")
        own = requests.iloc[np.flatnonzero(_server_of(requests, role) == number)]
        is_idle = number not in busy and own.empty
        if is_idle and role in idle:
            found.append({**idle[role], "server": number})
            continue
        finished = own[(own["status"] == "finished").to_numpy()]
        ttft = floats(finished, "ttft")
        alone = result.of_servers([number])
        metrics = {
            **_throughput(own, finished, duration),
            **_cache_and_preemptions(own),
            **engine_metrics(alone, start, duration),
        }
        median_ms = 1e3 * float(np.median(ttft)) if len(ttft) else math.nan
        shown = {name: metrics[name] for name in _OF_A_SERVER}
        if role == "prefill":
            shown["output_throughput"] = math.nan  # its requests' tokens come from others
        found.append({"server": number, "role": role, "num_requests": len(own), "median_ttft_ms": median_ms, **shown})
        if is_idle:
            idle[role] = found[-1]
    return found


def _imbalance(servers: Sequence[Mapping[str, Any]]) -> float:
    """The largest number of requests of a server, over the mean of its role; the largest ratio of all roles."""
    counts: dict[str, list[int]] = {}
    for server in servers:
        counts.setdefault(server["role"], []).append(server["num_requests"])
    return max(ratio(max(own) * len(own), sum(own)) for own in counts.values())


def _replay_lag(requests: Rows) -> dict[str, float]:
    """How late requests were issued; empty for a simulation, which issues them on time."""
    lag_ms = floats(requests, "replay_lag") * 1e3
    lag_ms = lag_ms[~np.isnan(lag_ms)]
    if not lag_ms.any():
        return {}
    p99 = float(np.percentile(lag_ms, 99))
    return {"mean_replay_lag_ms": float(lag_ms.mean()), "p99_replay_lag_ms": p99, "max_replay_lag_ms": lag_ms.max()}
