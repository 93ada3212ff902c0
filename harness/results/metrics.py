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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.config import MetricsConfig
from harness.results.tables import Floats, Gaps, Ints, RunResult, slot_uses

Bools = npt.NDArray[np.bool_]

HEADLINE = ("engine", "simulated", "model", "device", "trace", "arrival", "policy", "block_size", "num_blocks")
LATENCIES = ("ttft", "tpot", "e2el", "queue_time")


@dataclass(frozen=True)
class Window:
    """The intended arrival times, in s, between which a request counts, both ends included."""

    start_s: float
    end_s: float

    def contains(self, arrival_s: Floats) -> Bools:
        """bool[n]. A request that never arrived (NaN) is not cut: an interrupted run still owes it an answer."""
        return ~((arrival_s < self.start_s) | (arrival_s > self.end_s))


def summarize(result: RunResult, config: MetricsConfig) -> dict[str, Any]:
    """All metrics of a run as a dict that JSON can hold: what is undefined is None.

    Starts with the keys in `HEADLINE`, followed by the rest of `result.meta` (of which some may be nested) and the
    metrics, which are flat. Only requests that arrive inside the window count, and engine metrics are those between the
    first arrival and the last completion among them; gaps have no arrival time, so ITL covers the whole run, and a
    note says so when the window cuts anything.
    """
    assert isinstance(result.meta.get("simulated"), bool), "a result must say whether it was simulated"
    arrival = _floats(result.requests, "arrival_time")
    window = _window(arrival, config.warmup, config.drain)
    requests = result.requests[window.contains(arrival)]
    finished = requests[(requests["status"] == "finished").to_numpy()]
    start = _nan_min(_floats(requests, "arrival_time"))
    duration = _nan_max(_floats(finished, "finish_time")) - start
    excluded = len(result.requests) - len(requests)
    metrics = {
        "complete": result.complete,
        "window_start_s": window.start_s,
        "window_end_s": window.end_s,
        "num_excluded": excluded,
        **_throughput(requests, finished, duration),
        **_goodput(finished, len(requests), duration, config),
        **_latencies(finished, result.gaps, config.percentiles),
        **_cache_and_preemptions(requests),
        **engine_metrics(result, start, duration),
        **_replay_lag(requests),
    }
    notes = list(result.meta.get("notes", ()))
    if excluded:
        notes.append("ITL covers the whole run: token gaps are pooled, so the warm-up/drain window does not cut them")
    own = {"block_size": result.block_size, "num_blocks": result.num_blocks}
    return json_ready({**dict.fromkeys(HEADLINE), **result.meta, **own, "notes": notes, **metrics})


def step_integral(start_s: Floats, duration_s: Floats, amount: npt.NDArray[Any], at_s: npt.ArrayLike) -> Floats:
    """Sum of `amount` over all steps up to each time in `at_s`, a step's amount spread evenly over its duration.

    start_s, duration_s, amount: [num_steps], steps in time order, not overlapping. Returns float64 of the shape of
    `at_s`. The difference between two times is the amount between them, also where they cut a step.
    """
    times = np.asarray(at_s, dtype=np.float64)
    if not len(start_s):
        return np.zeros_like(times)
    total = np.concatenate(([0.0], np.cumsum(amount, dtype=np.float64)))
    # the step that starts last at or before each time; -1: none, and its share below is 0
    step = np.searchsorted(start_s, times, side="right") - 1
    into = times - start_s[step]
    share = np.divide(into, duration_s[step], out=np.ones_like(times), where=duration_s[step] > 0).clip(0.0, 1.0)
    share = np.where(step >= 0, share, 0.0)
    before = total[np.maximum(step, 0)]
    return before + share * (total[step + 1] - before)


def engine_metrics(result: RunResult, start_s: float, duration_s: float) -> dict[str, float]:
    """Metrics of the steps table between two times; idle time counts as zero use, zero running, zero waiting.

    duration_s may be NaN (nothing finished): the span then ends with the last step.
    """
    starts, durations = _floats(result.steps, "start_time"), _floats(result.steps, "duration")
    end = start_s + duration_s
    if math.isnan(end):
        end = _nan_max(starts + durations)
    inside = (starts < end) & (starts + durations > start_s)

    def column(name: str) -> Ints:
        return result.steps[name].to_numpy(dtype=np.int64)

    def time_mean(values: Ints) -> float:
        done = step_integral(starts, durations, values * durations, [start_s, end])
        return _ratio(done[1] - done[0], end - start_s)

    used, running, waiting = column("num_used_blocks"), column("num_running"), column("num_waiting")
    mean_used, mean_saved = time_mean(used), time_mean(column("num_saved_blocks"))
    decodes, prefill_tokens = column("num_decode_seqs")[inside], column("num_prefill_tokens")[inside]
    drafted, accepted = (int(column(f"num_{name}_tokens")[inside].sum()) for name in ("drafted", "accepted"))
    num_steps, num_decodes = int(inside.sum()), int(decodes.sum())
    sequences = num_decodes + int(column("num_prefill_seqs")[inside].sum())
    return {
        "num_steps": num_steps,
        "mean_batch_size": _ratio(sequences, num_steps),
        "mean_batch_tokens": _ratio(int(prefill_tokens.sum()) + num_decodes + drafted, num_steps),
        "mean_decode_batch_size": _ratio(num_decodes, int((decodes > 0).sum())),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_acceptance_rate": _ratio(accepted, drafted),
        "mean_tokens_per_decode": _ratio(num_decodes + accepted, num_decodes),
        "mean_kv_cache_usage": _ratio(mean_used, result.num_blocks),
        "max_kv_cache_usage": _ratio(int(used[inside].max(initial=0)), result.num_blocks),
        "mean_saved_blocks": mean_saved,
        "saved_block_share": _ratio(mean_saved, mean_used + mean_saved),
        **_slot_shares(result, time_mean),
        "mean_running": time_mean(running),
        "max_running": int(running[inside].max(initial=0)),
        "mean_waiting": time_mean(waiting),
        "max_waiting": int(waiting[inside].max(initial=0)),
        **_transfers(result.steps[inside], result.meta.get("kv_block_bytes", math.nan)),
    }


def _transfers(steps: pd.DataFrame, block_bytes: float) -> dict[str, float]:
    """What these steps copied between device, host and disk; what comes from the disk does so by way of the host."""
    columns = {
        "to_host": "num_blocks_out",
        "from_host": "num_blocks_in",
        "to_disk": "num_blocks_to_disk",
        "from_disk": "num_blocks_from_disk",
    }
    blocks = {link: _total(steps, column) for link, column in columns.items()}
    return {
        **{f"blocks_{link}": count for link, count in blocks.items()},
        **{f"bytes_{link}": count * block_bytes for link, count in blocks.items()},
        "transfer_wait_s": float(_floats(steps, "transfer_time").sum()),
    }


def _slot_shares(result: RunResult, time_mean: Callable[[Ints], float]) -> dict[str, float]:
    """What the KV memory is used for, in shares of the pool over time, and which share of all that is taken is waste:
    all but the slots with tokens."""
    names = ("tokens", "reserved", "internal", "external")
    uses = slot_uses(result)
    if uses is None:
        return {**{f"mean_kv_{name}": math.nan for name in names}, "kv_waste": math.nan}
    means = [time_mean(uses[name]) for name in names]
    num_slots = result.num_blocks * result.block_size
    shares = {f"mean_kv_{name}": _ratio(mean, num_slots) for name, mean in zip(names, means, strict=True)}
    return {**shares, "kv_waste": _ratio(sum(means[1:]), sum(means))}


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


def _window(arrival: Floats, warmup_s: float, drain_s: float) -> Window:
    return Window(_nan_min(arrival) + warmup_s, _nan_max(arrival) - drain_s)


def _throughput(requests: pd.DataFrame, finished: pd.DataFrame, duration: float) -> dict[str, Any]:
    status = requests["status"].astype(str).value_counts()
    inputs, outputs = _total(finished, "num_prompt_tokens"), _total(finished, "num_output_tokens")
    short = finished["num_output_tokens"].to_numpy() < finished["num_requested_tokens"].to_numpy()
    return {
        "num_prompts": len(requests),
        "duration": duration,
        "completed": len(finished),
        "failed": len(requests) - len(finished),
        **{name: int(status.get(name, 0)) for name in ("rejected", "aborted", "unfinished")},
        "truncated": int(short.sum()),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _ratio(len(finished), duration),
        "output_throughput": _ratio(outputs, duration),
        "total_token_throughput": _ratio(inputs + outputs, duration),
    }


def _goodput(finished: pd.DataFrame, offered: int, duration: float, config: MetricsConfig) -> dict[str, Any]:
    limits_ms = {"ttft": config.slo.ttft_ms, "tpot": config.slo.tpot_ms, "e2el": config.slo.e2el_ms}
    given = {name: limit for name, limit in limits_ms.items() if limit is not None}
    if not given:
        return {"request_goodput": None, "goodput_share": None}
    good = np.ones(len(finished), dtype=bool)
    for name, limit in given.items():
        # an undefined TPOT (NaN, of n = 1) meets every limit
        good &= ~(_floats(finished, name) * 1e3 > limit)
    met = int(good.sum())
    return {"request_goodput": _ratio(met, duration), "goodput_share": _ratio(met, offered)}


def _latencies(finished: pd.DataFrame, gaps: Gaps, percentiles: Sequence[float]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name in LATENCIES:
        seconds = _floats(finished, name)
        seconds = seconds[~np.isnan(seconds)]
        if len(seconds):
            cuts = np.percentile(seconds, [50, *percentiles])
            out |= _statistics(name, float(seconds.mean()), float(seconds.std()), cuts, percentiles)
        else:
            nothing = np.full(len(percentiles) + 1, math.nan)
            out |= _statistics(name, math.nan, math.nan, nothing, percentiles)
    return out | _statistics("itl", gaps.mean(), gaps.std(), gaps.percentiles([50, *percentiles]), percentiles)


def _statistics(name: str, mean: float, std: float, cuts: Floats, percentiles: Sequence[float]) -> dict[str, float]:
    """Named as in `vllm bench serve`, from seconds; `cuts` holds the median and then the percentiles."""
    seconds = {"mean": mean, "std": std, "median": float(cuts[0])}
    for percentile, cut in zip(percentiles, cuts[1:], strict=True):
        whole = float(percentile).is_integer()
        seconds[f"p{int(percentile) if whole else percentile}"] = float(cut)
    return {f"{statistic}_{name}_ms": value * 1e3 for statistic, value in seconds.items()}


def _cache_and_preemptions(requests: pd.DataFrame) -> dict[str, Any]:
    admitted = requests[requests["first_scheduled_time"].notna().to_numpy()]
    cached, prompt = _total(admitted, "num_cached_tokens"), _total(admitted, "num_prompt_tokens")
    return {
        "prefix_cache_hit_rate": _ratio(cached, prompt),
        "host_hit_rate": _ratio(_total(admitted, "num_host_cached_tokens"), prompt),
        "disk_hit_rate": _ratio(_total(admitted, "num_disk_cached_tokens"), prompt),
        "parked_s": float(_floats(requests, "parked_time").sum()),
        "recomputed_tokens": _total(requests, "num_recomputed_tokens"),
        "preemptions": _total(requests, "num_preemptions"),
        "swapped_preemptions": _total(requests, "num_swaps"),
        "partial_preemptions": _total(requests, "num_partial_preemptions"),
        "preempted_requests": int((requests["num_preemptions"].to_numpy() > 0).sum()),
    }


def _replay_lag(requests: pd.DataFrame) -> dict[str, float]:
    """How late requests were issued; empty for a simulation, which issues them on time."""
    lag_ms = _floats(requests, "replay_lag") * 1e3
    lag_ms = lag_ms[~np.isnan(lag_ms)]
    if not lag_ms.any():
        return {}
    p99 = float(np.percentile(lag_ms, 99))
    return {"mean_replay_lag_ms": float(lag_ms.mean()), "p99_replay_lag_ms": p99, "max_replay_lag_ms": lag_ms.max()}


def _floats(table: pd.DataFrame, name: str) -> Floats:
    return table[name].to_numpy(dtype=np.float64)


def _total(table: pd.DataFrame, name: str) -> int:
    return int(table[name].to_numpy(dtype=np.int64).sum())


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _nan_min(values: Floats) -> float:
    return float(np.fmin.reduce(values, initial=math.nan))


def _nan_max(values: Floats) -> float:
    return float(np.fmax.reduce(values, initial=math.nan))
