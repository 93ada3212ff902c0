"""Step times alone: a measured run of our own engine is replayed with its measured step times, and each plan priced.

With the time of every step given, the scheduler meets the same requests at the same times, so it must make the same
plans: then preemptions and cache hits are equal, and the error of the cost model is seen without what it leads to.
Predictions are medians, or the fastest times. Where steps were executed more often (task=retime), they are compared
with the median of all executions, or the fastest; where not, the total of a noisy machine's steps is longer than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.core.work import StepWork
from harness.config import RunConfig
from harness.config.validation import Part, StepStatistic
from harness.measured.measured_run import MeasuredRun, halves_of, handover_steps, time_of, whole_ns
from harness.results.tables import Floats
from harness.runs.recorder import RecordedRun
from harness.runs.simulated import SimulatedEngine
from harness.runs.system import resolve
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace
from simulator.costs.cost import CostModel

KINDS = ("prefill", "decode", "mixed")
_DECISIONS = [
    "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens", "num_running", "num_waiting",
    "num_used_blocks", "num_preempted", "num_first_admitted_tokens", "num_cached_tokens",
]  # fmt: skip
_NEVER_NS = 10**13  # longer than any run: the time of the steps after the last given one


@dataclass(frozen=True, eq=False)
class StepReplay:
    """A replay with measured step times.

    Attributes:
        steps: kind, start_time, measured, predicted (s), for the steps of the part that were planned as measured;
            single and halves as of `deviations`, NaN unless they were executed more than once.
        num_executions: of each step; `statistic` of them is what `measured` is.
        num_steps: steps measured.
        first_difference: the first step that was planned otherwise; None where all plans are the measured ones.
        same_preemptions, same_cache_hits: whether each request was preempted as often, and found as much in the cache.
    """

    steps: pd.DataFrame
    num_executions: int
    statistic: StepStatistic
    num_steps: int
    first_difference: int | None
    same_preemptions: bool
    same_cache_hits: bool

    def summary(self) -> dict[str, Any]:
        """Per kind of step: how many, MAPE, bias (mean of the signed errors) and error of their total time, in %; and
        where they were executed more than once the means of `deviations`."""
        errors = {kind: _errors(self.steps[self.steps["kind"] == kind]) for kind in KINDS}
        return {
            "num_steps": self.num_steps,
            "num_executions": self.num_executions,
            "statistic": self.statistic,
            "plans_identical": self.first_difference is None,
            "first_difference": self.first_difference,
            "preemptions_identical": self.same_preemptions,
            "cache_hits_identical": self.same_cache_hits,
            "errors": {kind: found for kind, found in {"all": _errors(self.steps), **errors}.items() if found},
        }


class GivenTimes:
    """Cost model that hands out the given times of steps in order, and then one that is longer than any run."""

    def __init__(self, times_ns: Iterable[int]) -> None:
        self._left = iter(times_ns)

    def step_ns(self, work: StepWork) -> int:
        return next(self._left, _NEVER_NS)

    def decode_ns(self, work: StepWork, num_steps: int) -> npt.NDArray[np.int64]:
        raise AssertionError("every step is taken on its own")


class _PricedReplay(GivenTimes):
    """Notes what another cost model would have said."""

    def __init__(self, durations_ns: npt.NDArray[np.int64], priced: CostModel) -> None:
        super().__init__(durations_ns.tolist())
        self._priced = priced
        self.kinds: list[str] = []
        self.predicted_ns: list[int] = []

    def step_ns(self, work: StepWork) -> int:
        self.kinds.append("decode" if not work.chunks else "mixed" if work.num_decodes else "prefill")
        self.predicted_ns.append(self._priced.step_ns(work))
        return super().step_ns(work)


def replay_steps(
    run: MeasuredRun, config: RunConfig, priced: CostModel, part: Part, statistic: StepStatistic
) -> StepReplay:
    """Replay `run`, of our own engine, under `config` with its measured step times, and price its steps, which are
    compared with that `statistic` of their executions.

    The steps of a part of the requests are those before the first arrival of the second half, or from there on.
    """
    assert run.own is not None
    measured = run.own.result.steps
    trace, delivered_ns = as_delivered(run)
    cost = _PricedReplay(whole_ns(measured["duration"]), priced)
    replayed = serve_at(config, trace, delivered_ns, cost)
    different = first_difference(measured, replayed.steps)
    num_same = len(measured) if different is None else different
    in_order = replayed.requests.assign(row=trace.table["row"].to_numpy()).sort_values("row")

    def same(name: str) -> bool:
        return bool(np.array_equal(in_order[name].to_numpy(), run.requests[name].to_numpy()))

    executions = run.own.executions()
    single, halves = deviations(executions, statistic)
    steps = pd.DataFrame(
        {
            "kind": cost.kinds[:num_same],
            "start_time": measured["start_time"].to_numpy()[:num_same],
            "measured": time_of(executions, statistic)[:num_same],
            "predicted": np.array(cost.predicted_ns[:num_same]) * 1e-9,
            "single": single[:num_same],
            "halves": halves[:num_same],
        }
    )
    steps = steps[_in_part(run, steps["start_time"].to_numpy(), part)]
    same_preemptions, same_cache_hits = same("num_preemptions"), same("num_cached_tokens")
    return StepReplay(steps, len(executions), statistic, len(measured), different, same_preemptions, same_cache_hits)


def serve_at(config: RunConfig, trace: Trace, seen_ns: npt.NDArray[np.int64], times: GivenTimes) -> RecordedRun:
    """What comes of `trace` when its requests reach the scheduler at `seen_ns`, ascending, and steps take `times`."""
    one_by_one = config.engine.model_copy(update={"compress": False, "max_lookahead_steps": 1})
    stepwise = config.model_copy(update={"engine": one_by_one})
    engine = SimulatedEngine(resolve(stepwise), trace, OpenLoop(seen_ns), times)
    engine.run()
    return engine.recorder.tables(trace, engine.unfinished())


def deviations(executions: Floats, statistic: StepStatistic = "median") -> tuple[Floats, Floats]:
    """How well the times of steps are known, relatively and by step, from `executions` [executions, steps].

    Returns: the mean distance of a single execution from the `statistic` of all, and that of the statistics of both
    halves from each other; medians of halves are about twice as far apart as that of all is from the truth. NaN if too
    few.
    """
    count, num_steps = executions.shape
    if count < 2:
        return np.full(num_steps, np.nan), np.full(num_steps, np.nan)
    single = np.abs(executions / time_of(executions, statistic) - 1).mean(axis=0)
    one, other = (time_of(half, statistic) for half in halves_of(executions))
    return single, np.abs(one / other - 1)


def as_delivered(run: MeasuredRun) -> tuple[Trace, npt.NDArray[np.int64]]:
    """The trace of a run of our own engine in the order in which requests reached the scheduler, and when, in ns.

    Its column `row` is their place in `MeasuredRun.trace`.
    """
    delivered_ns, order = _deliveries(run)
    table = run.trace.table.iloc[order].reset_index(drop=True).assign(request_id=np.arange(len(order)), row=order)
    return replace(run.trace, table=table), delivered_ns


def _in_part(run: MeasuredRun, start_s: Floats, part: Part) -> npt.NDArray[np.bool_]:
    assert run.own is not None
    middle = run.own.rows[len(run.own.rows) // 2]
    boundary = float(run.own.result.requests["arrival_time"].iloc[middle])
    return {"all": start_s >= 0, "first_half": start_s < boundary, "second_half": start_s >= boundary}[part]


def _deliveries(run: MeasuredRun) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """When each request reached the scheduler, in ns, ascending, and the rows of the trace in that order, which is the
    one in which they were issued."""
    assert run.own is not None
    steps, requests = run.own.result.steps, run.own.result.requests.iloc[run.own.rows]
    arrival_ns = whole_ns(requests["arrival_time"])
    issued_ns = arrival_ns + whole_ns(requests["replay_lag"].fillna(0.0))
    order = np.lexsort((run.own.rows, arrival_ns, issued_ns))
    finish_s = requests["finish_time"].to_numpy(dtype=np.float64)
    return whole_ns(steps["start_time"])[handover_steps(steps, finish_s)], order


def first_difference(measured: pd.DataFrame, replayed: pd.DataFrame) -> int | None:
    """The first step of a replay that was planned otherwise than measured; None where all are the same."""
    shorter = min(len(measured), len(replayed))
    one, other = (table[_DECISIONS].to_numpy()[:shorter] for table in (measured, replayed))
    starts = whole_ns(measured["start_time"])[:shorter] != whole_ns(replayed["start_time"])[:shorter]
    different = np.flatnonzero((one != other).any(axis=1) | starts)
    if len(different):
        return int(different[0])
    return None if len(measured) == len(replayed) else shorter


def _errors(steps: pd.DataFrame) -> dict[str, float]:
    if steps.empty:
        return {}
    known = {name: float(100 * steps[name].mean()) for name in ("single", "halves") if steps[name].notna().any()}
    return {
        "count": len(steps),
        **relative_errors(steps),
        **{f"{name}_mape_pct": value for name, value in known.items()},
    }


def relative_errors(steps: pd.DataFrame) -> dict[str, float]:
    """MAPE, bias (mean of the signed errors) and error of the total of `predicted` against `measured`, in %."""
    measured, predicted = steps["measured"].to_numpy(), steps["predicted"].to_numpy()
    relative = 100 * (predicted - measured) / measured
    return {
        "mape_pct": float(np.abs(relative).mean()),
        "bias_pct": float(relative.mean()),
        "total_error_pct": float(100 * (predicted.sum() / measured.sum() - 1)),
    }
