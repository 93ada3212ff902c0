"""The columns of the table of steps, from what was recorded of plans."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.record.request_times import NS
from harness.record.transfer_log import TransferLog
from simulator.table import Table, constant

TIME_COLUMNS = ("schedule_time", "prepare_time", "execute_time", "sample_time")  # of steps on a real clock


def matrix(buffer: array[int], num_columns: int) -> NDArray[np.int64]:
    """The rows of a buffer, without a copy: int64[n, num_columns]."""
    return np.frombuffer(buffer, dtype=np.int64).reshape(-1, num_columns)


def table_of(rows: NDArray[np.int64], columns: Sequence[str]) -> Table:
    """The columns of a matrix, without a copy."""
    return Table(dict(zip(columns, rows.T, strict=True)))


def step_columns(
    plans: Table,
    durations: NDArray[np.int64],
    growth: NDArray[np.int64],
    drafts: NDArray[np.int64],
    times: NDArray[np.int64],
    transfers: TransferLog,
    *,
    reserves: bool,
) -> dict[str, Any]:
    """A row per step, made without copies: what is built here is most of the memory of a long run.

    Args:
        plans: a row per plan, the columns as in `harness.record.recorder`.
        durations: of each step in ns, int64[num_steps].
        growth: plan, step in the plan and blocks, int64[n, 3].
        drafts: step, context tokens, drafted and accepted tokens, int64[n, 4].
        times: of plans on a real clock in ns, int64[num_plans, 4], or int64[0, 4].
        reserves: whether blocks are handed out as contiguous reservations, which decodes use up.
    """
    num_steps = plans["num_steps"].to_numpy()
    plan = np.repeat(np.arange(len(plans)), num_steps)  # the plan of each step
    first = np.cumsum(num_steps) - num_steps  # the first step of each plan
    ahead = np.arange(len(durations)) - first[plan]
    ended = np.cumsum(durations) - durations
    start_ns = plans["start_ns"].to_numpy()[plan] + ended - ended[first][plan]
    steps: dict[str, Any] = {
        "lane": _spread(plans["lane"].to_numpy(), plan),
        "start_time": start_ns * NS,
        "duration": durations * NS,
    }
    del ended, start_ns
    for column in plans.columns[2:-2]:
        steps[column] = _spread(plans[column].to_numpy(), plan)
    base = steps["num_context_tokens"]
    padding = ahead * steps["num_padding_tokens"]  # of ended sequences, as steps after the first have no prompts
    contexts = base + ahead * steps["num_decode_seqs"] + padding
    contexts[drafts[:, 0]] = drafts[:, 1]
    for i, column in enumerate(("num_drafted_tokens", "num_accepted_tokens"), 2):
        steps[column] = constant(0, len(durations))
        if len(drafts):
            steps[column] = np.zeros(len(durations), dtype=np.int64)
            np.add.at(steps[column], drafts[:, 0], drafts[:, i])
    gained = contexts - base - padding
    steps["num_context_tokens"] = contexts
    steps["num_kv_tokens"] = steps["num_kv_tokens"] + gained
    if reserves:
        steps["num_reserved_slots"] = steps["num_reserved_slots"] - gained
    del base, padding, gained
    gains = np.zeros(len(durations), dtype=np.int64)
    gains[first[growth[:, 0]] + growth[:, 1]] = growth[:, 2]
    grown = np.cumsum(gains)
    steps["num_used_blocks"] = steps["num_used_blocks"] + (grown - grown[first][plan])
    del gains, grown
    # What happens once per plan happens in its first step.
    for column in ("num_preempted", "num_first_admitted_tokens", "num_cached_tokens"):
        if steps[column].any():
            steps[column][ahead > 0] = 0
    steps |= transfers.step_columns(first, len(durations))
    waits = steps.pop("wait_ns")
    steps["transfer_time"] = waits * NS if waits.any() else constant(0.0, len(durations))
    for i, column in enumerate(TIME_COLUMNS):
        steps[column] = times[plan, i] * NS / num_steps[plan] if len(times) else constant(np.nan, len(durations))
    return steps


def _spread(values: NDArray[np.int64], plan: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of the plan of each step."""
    return values[plan] if values.any() else constant(0, len(plan))
