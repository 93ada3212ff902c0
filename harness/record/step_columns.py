"""The columns of the table of steps, from what was recorded of plans."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.record.plan_log import PLAN_COLUMNS
from harness.record.request_times import NS
from harness.record.transfer_log import transfer_columns
from simulator.table import Table, constant

TIME_COLUMNS = ("schedule_time", "prepare_time", "execute_time", "sample_time")  # of steps on a real clock


def matrix(buffer: array[int], num_columns: int) -> NDArray[np.int64]:
    """The rows of a buffer, without a copy: int64[n, num_columns]."""
    return np.frombuffer(buffer, dtype=np.int64).reshape(-1, num_columns)


def table_of(rows: NDArray[np.int64], columns: Sequence[str]) -> Table:
    """The columns of a matrix, without a copy."""
    return Table(dict(zip(columns, rows.T, strict=True)))


class StepLog(NamedTuple):
    """What a server has recorded of its steps.

    Attributes:
        plans: a row per plan, the columns as in `harness.record.plan_log`.
        durations: of each step in ns, int64[num_steps].
        growth: plan, step in the plan and blocks, int64[n, 3].
        drafts: step, context tokens, drafted and accepted tokens, int64[n, 4].
        times: of plans on a real clock in ns, int64[num_plans, 4], or int64[0, 4].
        transfers: plan, and what `harness.record.transfer_log` counts, int64[n, 6].
        reserves: whether blocks are handed out as contiguous reservations, which decodes use up.
        origin_ns: the time that is 0 in the table.
    """

    plans: NDArray[np.int64]
    durations: NDArray[np.int64]
    growth: NDArray[np.int64]
    drafts: NDArray[np.int64]
    times: NDArray[np.int64]
    transfers: NDArray[np.int64]
    reserves: bool
    origin_ns: int = 0


def step_columns(logs: Sequence[StepLog]) -> dict[str, Any]:
    """A row per step of all servers, by the time when it began; of several that began together in the order of the
    servers.

    What is told of plans is copied to their steps in that order at once, and most other columns are made of that: a
    long run has millions of steps, and each column of one server that is then put in order takes as long again.
    """
    plans = table_of(_joined([log.plans for log in logs]), PLAN_COLUMNS)
    durations = _joined([log.durations for log in logs])
    first_plans = np.cumsum([0, *(len(log.plans) for log in logs)])
    first_steps = np.cumsum([0, *(len(log.durations) for log in logs)])
    server = np.repeat(np.arange(len(logs)), np.diff(first_plans))
    num_steps = plans["num_steps"].to_numpy()
    plan = np.repeat(np.arange(len(plans)), num_steps)  # the plan of each step
    first = np.cumsum(num_steps) - num_steps  # the first step of each plan
    growth = _renumbered([log.growth for log in logs], first_plans)
    gains = np.zeros(len(durations), dtype=np.int64)
    gains[first[growth[:, 0]] + growth[:, 1]] = growth[:, 2]
    gained = _since_first(np.cumsum(gains), first, plan)
    ahead = np.arange(len(durations)) - first.take(plan)
    start_ns = _spread(plans["start_ns"].to_numpy(), plan) + _since_first(np.cumsum(durations) - durations, first, plan)
    place = np.arange(len(durations))  # in the table
    if len(logs) > 1:
        order = np.argsort(start_ns, kind="stable")
        place[order] = np.arange(len(order))
        plan, ahead, start_ns, durations, gained = (
            each.take(order) for each in (plan, ahead, start_ns, durations, gained)
        )
        del order
    origins = np.array([log.origin_ns for log in logs])
    begins = start_ns * NS
    if origins.any():
        begins -= (origins * NS)[server][plan]
    steps: dict[str, Any] = {
        "step": np.arange(len(durations)),
        "server": server.take(plan),
        "lane": _spread(plans["lane"].to_numpy(), plan),
        "start_time": begins,
        "duration": durations * NS,
    }
    del start_ns, gains
    for column in plans.columns[2:-2]:
        steps[column] = _spread(plans[column].to_numpy(), plan)
    drafts = _renumbered([log.drafts for log in logs], first_steps)
    drafting = place[drafts[:, 0]]
    padding = ahead * steps["num_padding_tokens"]  # of ended sequences, as steps after the first have no prompts
    tokens = ahead * steps["num_decode_seqs"]
    if len(drafts):
        tokens[drafting] = drafts[:, 1] - steps["num_context_tokens"][drafting] - padding[drafting]
    for i, column in enumerate(("num_drafted_tokens", "num_accepted_tokens"), 2):
        steps[column] = constant(0, len(durations))
        if len(drafts):
            steps[column] = np.zeros(len(durations), dtype=np.int64)
            np.add.at(steps[column], drafting, drafts[:, i])
    steps["num_context_tokens"] = steps["num_context_tokens"] + tokens + padding
    steps["num_kv_tokens"] = steps["num_kv_tokens"] + tokens
    if any(log.reserves for log in logs):
        reserves = np.array([log.reserves for log in logs])[server]
        steps["num_reserved_slots"] = steps["num_reserved_slots"] - tokens * reserves[plan]
    steps["num_used_blocks"] = steps["num_used_blocks"] + gained
    del tokens, padding, gained
    # What happens once per plan happens in its first step.
    for column in ("num_preempted", "num_first_admitted_tokens", "num_cached_tokens"):
        if steps[column].any():
            steps[column][ahead > 0] = 0
    transfers = _renumbered([log.transfers for log in logs], first_plans)
    steps |= transfer_columns(transfers, place[first], len(durations))
    waits = steps.pop("wait_ns")
    steps["transfer_time"] = waits * NS if waits.any() else constant(0.0, len(durations))
    times = _times(logs)
    for i, column in enumerate(TIME_COLUMNS):
        known = None if times is None else times[plan, i] * NS / num_steps[plan]
        steps[column] = constant(np.nan, len(durations)) if known is None else known
    return steps


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _renumbered(parts: Sequence[NDArray[np.int64]], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of all servers; the first column, which counts a server's plans or steps from 0, goes on from the start
    of each server."""
    moved = [
        rows + np.array([start] + [0] * (rows.shape[1] - 1)) if start and len(rows) else rows
        for rows, start in zip(parts, starts[:-1], strict=True)
    ]
    return _joined(moved)


def _since_first(totals: NDArray[np.int64], first: NDArray[np.int64], plan: NDArray[np.int64]) -> NDArray[np.int64]:
    """By how much a running total exceeds that of the first step of the plan."""
    return totals - totals[first].take(plan)


def _times(logs: Sequence[StepLog]) -> NDArray[Any] | None:
    """Times of all plans on a real clock, NaN for servers without them; None if no server has any."""
    if not any(len(log.times) for log in logs):
        return None
    return _joined(
        [log.times if len(log.times) else np.full((len(log.plans), len(TIME_COLUMNS)), np.nan) for log in logs]
    )


def _spread(values: NDArray[np.int64], plan: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of the plan of each step."""
    return np.ascontiguousarray(values).take(plan) if values.any() else constant(0, len(plan))
