"""Metrics of the steps of a run: batch sizes, use of the KV cache, speculation, transfers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.results.columns import floats, nan_max, ratio, total
from harness.results.tables import Floats, Ints, RunResult, slot_uses


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
    starts, durations = floats(result.steps, "start_time"), floats(result.steps, "duration")
    end = start_s + duration_s
    if math.isnan(end):
        end = nan_max(starts + durations)
    inside = (starts < end) & (starts + durations > start_s)

    def column(name: str) -> Ints:
        return result.steps[name].to_numpy(dtype=np.int64)

    def time_mean(values: Ints) -> float:
        done = step_integral(starts, durations, values * durations, [start_s, end])
        return ratio(done[1] - done[0], end - start_s)

    used, running, waiting = column("num_used_blocks"), column("num_running"), column("num_waiting")
    mean_used, mean_saved = time_mean(used), time_mean(column("num_saved_blocks"))
    decodes, prefill_tokens = column("num_decode_seqs")[inside], column("num_prefill_tokens")[inside]
    drafted, accepted = (int(column(f"num_{name}_tokens")[inside].sum()) for name in ("drafted", "accepted"))
    num_steps, num_decodes = int(inside.sum()), int(decodes.sum())
    sequences = num_decodes + int(column("num_prefill_seqs")[inside].sum())
    return {
        "num_steps": num_steps,
        "mean_batch_size": ratio(sequences, num_steps),
        "mean_batch_tokens": ratio(int(prefill_tokens.sum()) + num_decodes + drafted, num_steps),
        "mean_decode_batch_size": ratio(num_decodes, int((decodes > 0).sum())),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_acceptance_rate": ratio(accepted, drafted),
        "mean_tokens_per_decode": ratio(num_decodes + accepted, num_decodes),
        "mean_kv_cache_usage": ratio(mean_used, result.num_blocks),
        "max_kv_cache_usage": ratio(int(used[inside].max(initial=0)), result.num_blocks),
        "mean_saved_blocks": mean_saved,
        "saved_block_share": ratio(mean_saved, mean_used + mean_saved),
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
    blocks = {link: total(steps, column) for link, column in columns.items()}
    return {
        **{f"blocks_{link}": count for link, count in blocks.items()},
        **{f"bytes_{link}": count * block_bytes for link, count in blocks.items()},
        "transfer_wait_s": float(floats(steps, "transfer_time").sum()),
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
    shares = {f"mean_kv_{name}": ratio(mean, num_slots) for name, mean in zip(names, means, strict=True)}
    return {**shares, "kv_waste": ratio(sum(means[1:]), sum(means))}
