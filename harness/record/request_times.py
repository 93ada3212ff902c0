"""Times of requests in seconds, the latencies between them and the gaps between tokens, from whole nanoseconds."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.results.tables import Gaps
from simulator.table import Table

UNSET = -1  # a time that was never reached
NS = 1e-9


def seconds(times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds, NaN where the time was never reached."""
    return np.where(times_ns == UNSET, np.nan, times_ns * NS)


def latencies(table: Mapping[str, NDArray[Any]], recorded: Table) -> dict[str, NDArray[np.float64]]:
    """TTFT, TPOT, E2EL and queue time in s of requests with the columns of `table`; differences are taken in whole
    ns."""
    times = {
        name: recorded[f"{name}_ns"].to_numpy() for name in ("arrival", "first_scheduled", "first_token", "finish")
    }

    def between(start: str, end: str) -> NDArray[np.float64]:
        reached = (times[start] != UNSET) & (times[end] != UNSET)
        return np.where(reached, (times[end] - times[start]) * NS, np.nan)

    more = table["num_output_tokens"] / table["num_sequences"] - 1
    return {
        "ttft": between("arrival", "first_token"),
        "tpot": np.where(more > 0, between("first_token", "finish") / np.where(more > 0, more, 1), np.nan),
        "e2el": between("arrival", "finish"),
        "queue_time": between("arrival", "first_scheduled"),
    }


def token_gaps(plans: Table, durations: NDArray[np.int64], single_gaps: array[int]) -> Gaps:
    """All gaps between tokens: those of single sequences, and for each decode step one for the rest of its lane.

    Tokens that a step brings together have no gap between them.
    """
    single = np.frombuffer(single_gaps, dtype=np.int64)
    lanes = plans["lane"].to_numpy()
    shared = [_shared_gaps(plans, durations)]
    if lanes.any():
        of_step = np.repeat(lanes, plans["num_steps"])
        shared = [_shared_gaps(plans[lanes == lane], durations[of_step == lane]) for lane in np.unique(lanes)]
    values, weights = (np.concatenate(parts) for parts in zip(*shared, strict=True))
    return Gaps(np.concatenate([single, values]) * NS, np.concatenate([np.ones(len(single), np.int64), weights]))


def _shared_gaps(plans: Table, durations: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Gaps in ns, and how many sequences had each, of plans that follow one another."""
    all_starts, all_steps, all_decodes = (
        plans[name].to_numpy() for name in ("start_ns", "num_steps", "num_decode_seqs")
    )
    all_firsts = np.cumsum(all_steps) - all_steps
    decoding = all_decodes > 0
    starts, first, num_steps = all_starts[decoding], all_firsts[decoding], all_steps[decoding]
    ended = np.concatenate([[0], np.cumsum(durations)])
    ends = starts + ended[first + num_steps] - ended[first]
    first_ends = starts + durations[first]
    shared = first_ends - np.concatenate([[0], ends])[:-1]  # since the decode step before, whichever plan it was in
    weights = (all_decodes - plans["num_fresh"].to_numpy())[decoding]
    plan = np.repeat(np.arange(len(plans)), all_steps)
    later = np.arange(len(durations)) > all_firsts[plan]
    values = np.concatenate([shared[weights > 0], durations[later]])
    return values, np.concatenate([weights[weights > 0], all_decodes[plan][later]])
