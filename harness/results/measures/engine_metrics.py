"""Metrics of the steps of a run: batch sizes, use of the KV cache, speculation, transfers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.results.columns import floats, nan_max, ratio, total
from harness.results.measures.servers import levels_of, timeline
from harness.results.measures.waiting import mean_waiting
from harness.results.tables import Ints, Rows, RunResult, slot_uses

# What readings of a server's metrics say.
_SAMPLED = ("mean_kv_cache_usage", "max_kv_cache_usage", "mean_running", "max_running", "max_waiting")


def engine_metrics(result: RunResult, start_s: float, duration_s: float) -> dict[str, float]:
    """Metrics of the steps of all servers, NaN where nothing tells them; see `_of_steps`."""
    metrics = _of_steps(result, start_s, duration_s)
    if not result.are_steps_sampled:
        return metrics
    steps = result.step_rows
    known = {name: metrics[name] for name in _SAMPLED if len(steps)}
    if len(steps):
        waiting = levels_of(steps, "num_waiting")
        known["mean_waiting"] = waiting.mean(start_s, start_s + duration_s)
        known["preemptions"] = total(steps, "num_preempted")
        known["prefix_cache_hit_rate"] = ratio(
            total(steps, "num_cached_tokens"), total(steps, "num_first_admitted_tokens")
        )
    return dict.fromkeys(metrics, math.nan) | known


def _of_steps(result: RunResult, start_s: float, duration_s: float) -> dict[str, float]:
    """Metrics of the steps of all servers between two times; idle time counts as zero use, zero running, zero waiting.

    duration_s may be NaN (nothing finished): the span then ends with the last step. Shares of the KV cache are NaN
    where the size of the pool is not known.
    """
    steps = result.step_rows
    starts, durations = floats(steps, "start_time"), floats(steps, "duration")
    end = start_s + duration_s
    if math.isnan(end):
        end = nan_max(starts + durations)
    inside = (starts < end) & (starts + durations > start_s)
    line = timeline(steps)

    def column(name: str) -> Ints:
        return steps[name].to_numpy(dtype=np.int64)

    def time_mean(values: Ints) -> float:
        return line.levels(values).mean(start_s, end)

    def peak(name: str) -> int:
        return levels_of(steps, name).peak(start_s, end)

    mean_used, mean_saved = time_mean(column("num_used_blocks")), time_mean(column("num_saved_blocks"))
    decodes, prefill_tokens = column("num_decode_seqs")[inside], column("num_prefill_tokens")[inside]
    drafted, accepted = (int(column(f"num_{name}_tokens")[inside].sum()) for name in ("drafted", "accepted"))
    num_steps, num_decodes = int(inside.sum()), int(decodes.sum())
    sequences = num_decodes + int(column("num_prefill_seqs")[inside].sum())
    blocks = result.fleet_blocks
    return {
        "num_steps": num_steps,
        "mean_batch_size": ratio(sequences, num_steps),
        "mean_batch_tokens": ratio(int(prefill_tokens.sum()) + num_decodes + drafted, num_steps),
        "mean_decode_batch_size": ratio(num_decodes, int((decodes > 0).sum())),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "draft_acceptance_rate": ratio(accepted, drafted),
        "mean_tokens_per_decode": ratio(num_decodes + accepted, num_decodes),
        "mean_kv_cache_usage": ratio(mean_used, blocks),
        "max_kv_cache_usage": ratio(peak("num_used_blocks"), blocks),
        "mean_saved_blocks": mean_saved,
        "saved_block_share": ratio(mean_saved, mean_used + mean_saved),
        **_slot_shares(result, time_mean),
        "mean_running": levels_of(steps, "num_running").mean(start_s, end),
        "max_running": peak("num_running"),
        "mean_waiting": mean_waiting(result, start_s, end),
        "max_waiting": peak("num_waiting"),
        **_transfers(steps, inside, result.meta.get("kv_block_bytes") or math.nan),
    }


def _transfers(steps: Rows, inside: NDArray[np.bool_], block_bytes: float) -> dict[str, float]:
    """What the steps `inside` a span copied between device, host and disk; what comes from the disk does so by way of
    the host."""
    columns = {
        "to_host": "num_blocks_out",
        "from_host": "num_blocks_in",
        "to_disk": "num_blocks_to_disk",
        "from_disk": "num_blocks_from_disk",
    }
    moved = steps[[*columns.values(), "transfer_time"]][inside]  # a copy of these columns, and not of the whole table
    blocks = {link: total(moved, column) for link, column in columns.items()}
    return {
        **{f"blocks_{link}": count for link, count in blocks.items()},
        **{f"bytes_{link}": count * block_bytes for link, count in blocks.items()},
        "transfer_wait_s": float(floats(moved, "transfer_time").sum()),
    }


def _slot_shares(result: RunResult, time_mean: Callable[[Ints], float]) -> dict[str, float]:
    """What the KV memory is used for, in shares of the pool over time, and which share of all that is taken is waste:
    all but the slots with tokens."""
    names = ("tokens", "reserved", "internal", "external")
    uses = slot_uses(result)
    if uses is None:
        return {**{f"mean_kv_{name}": math.nan for name in names}, "kv_waste": math.nan}
    means = [time_mean(uses[name]) for name in names]
    num_slots = result.fleet_blocks * result.block_size
    shares = {f"mean_kv_{name}": ratio(mean, num_slots) for name, mean in zip(names, means, strict=True)}
    return {**shares, "kv_waste": ratio(sum(means[1:]), sum(means))}
