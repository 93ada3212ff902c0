"""Errors of single steps: replays a run of our own engine with its measured step times and prices every step.

With measured step times the scheduler sees the same requests at the same times as in the run, so it must make the same
plans, preemptions and cache hits. The error of the cost model on a step is then free of the effects of earlier errors.
Cost models predict medians here; a single measured time of each step is compared, whose total is higher than that of
the medians on a noisy machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.core.work import StepWork
from harness.config.schema.tasks.validation import Part
from harness.engines.simulated import SimulatedEngine
from harness.measured.measured_run import MeasuredRun, handover_steps, whole_ns
from harness.results.tables import DECISIONS, Floats
from harness.validation.error_statistics import is_in_part, part_of
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace, rows_of
from simulator.costs.cost import CostModel
from simulator.fleets.fleet_system import FleetSystem
from simulator.system import System

KINDS = ("prefill", "decode", "mixed")
_NEVER_NS = 10**13  # longer than any run: the time of every step after the last measured one


@dataclass(frozen=True, eq=False)
class StepReplay:
    """A replay with measured step times.

    Attributes:
        steps: columns kind, start_time, measured, predicted (s). A row per step of the part, up to `first_difference`.
        num_steps: number of measured steps.
        first_difference: the first step whose plan differs from the measured one; None if all plans are equal.
        same_preemptions, same_cache_hits: whether the replay equals the run in the preemptions and cached tokens of
            every request.
    """

    steps: pd.DataFrame
    num_steps: int
    first_difference: int | None
    same_preemptions: bool
    same_cache_hits: bool

    def summary(self) -> dict[str, Any]:
        """What validation.json holds: for each kind of step the count, MAPE, bias (mean signed error) and error of the
        total time, in %."""
        errors = {kind: _errors(self.steps[self.steps["kind"] == kind]) for kind in KINDS}
        return {
            "num_steps": self.num_steps,
            "plans_identical": self.first_difference is None,
            "first_difference": self.first_difference,
            "preemptions_identical": self.same_preemptions,
            "cache_hits_identical": self.same_cache_hits,
            "errors": {kind: found for kind, found in {"all": _errors(self.steps), **errors}.items() if found},
        }


class _PricedReplay:
    """Cost model that returns the measured step times in order, after the last one a time longer than any run, and
    records what the cost model `priced` predicts."""

    def __init__(self, durations_ns: npt.NDArray[np.int64], priced: CostModel) -> None:
        self._left = iter(durations_ns.tolist())
        self._priced = priced
        self.kinds: list[str] = []
        self.predicted_ns: list[int] = []

    def step_ns(self, work: StepWork) -> int:
        self.kinds.append("decode" if not work.chunks else "mixed" if work.num_decodes else "prefill")
        self.predicted_ns.append(self._priced.step_ns(work))
        return next(self._left, _NEVER_NS)

    def decode_ns(self, work: StepWork, num_steps: int) -> npt.NDArray[np.int64]:
        raise AssertionError("steps are simulated one by one")


def replay_steps(run: MeasuredRun, system: System, priced: CostModel, part: Part) -> StepReplay:
    """Replay `run`, of our own engine, on `system` with its measured step times; `priced` prices the steps.

    The steps of the first half of the requests are those before the first arrival of the second half.
    """
    assert run.own is not None
    measured = run.own.result.steps
    trace, delivered_ns = as_delivered(run)
    cost = _PricedReplay(whole_ns(measured["duration"]), priced)
    one_by_one = replace(system, compress=False, max_lookahead_steps=1)
    engine = SimulatedEngine(FleetSystem.alone(one_by_one), trace, OpenLoop(delivered_ns), cost)
    engine.run()
    replayed = engine.record.tables(trace, engine.unfinished())
    different = first_difference(measured, replayed.steps)
    num_same = len(measured) if different is None else different
    in_order = replayed.requests.assign(row=trace.rows["row"].to_numpy()).sort_values("row")

    def same(name: str) -> bool:
        return bool(np.array_equal(in_order[name].to_numpy(), run.requests[name].to_numpy()))

    steps = pd.DataFrame(
        {
            "kind": cost.kinds[:num_same],
            "start_time": measured["start_time"].to_numpy()[:num_same],
            "measured": measured["duration"].to_numpy(dtype=np.float64)[:num_same],
            "predicted": np.array(cost.predicted_ns[:num_same]) * 1e-9,
        }
    )
    steps = steps[_in_part(run, steps["start_time"].to_numpy(), part)]
    same_preemptions, same_cache_hits = same("num_preemptions"), same("num_cached_tokens")
    return StepReplay(steps, len(measured), different, same_preemptions, same_cache_hits)


def as_delivered(run: MeasuredRun) -> tuple[Trace, npt.NDArray[np.int64]]:
    """The trace of a run of our own engine in the order in which requests reached the scheduler, and the times in ns at
    which they did. The trace's column `row` is the row of the request in `MeasuredRun.trace`."""
    delivered_ns, order = _deliveries(run)
    trace = rows_of(run.trace, order)
    return replace(trace, rows=trace.rows.assign(row=order)), delivered_ns


def _in_part(run: MeasuredRun, start_s: Floats, part: Part) -> npt.NDArray[np.bool_]:
    assert run.own is not None
    arrivals = run.own.result.requests["arrival_time"].to_numpy()[run.own.rows]
    return is_in_part(start_s, arrivals, part_of(run.requests, part))


def _deliveries(run: MeasuredRun) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Times in ns at which requests reached the scheduler, ascending, and the row of the trace for each: the scheduler
    gets requests in the order in which they are issued."""
    assert run.own is not None
    steps, requests = run.own.result.steps, run.own.result.requests.iloc[run.own.rows]
    arrival_ns = whole_ns(requests["arrival_time"])
    issued_ns = arrival_ns + whole_ns(requests["replay_lag"].fillna(0.0))
    order = np.lexsort((run.own.rows, arrival_ns, issued_ns))
    step = handover_steps(steps, requests["finish_time"].to_numpy(dtype=np.float64))
    starts = whole_ns(steps["start_time"])
    if run.own.config.scheduler.async_scheduling:  # planned while the step before ran, if there was one
        ends = starts + whole_ns(steps["duration"])
        step -= (step > 0) & (starts[step] <= ends[step - 1] + 1)
    return starts[step], order


def first_difference(measured: pd.DataFrame, replayed: pd.DataFrame) -> int | None:
    """The first step of a replay whose plan differs from the measured one; None if all plans are equal."""
    shorter = min(len(measured), len(replayed))
    one, other = (table[list(DECISIONS)].to_numpy()[:shorter] for table in (measured, replayed))
    starts = whole_ns(measured["start_time"])[:shorter] != whole_ns(replayed["start_time"])[:shorter]
    different = np.flatnonzero((one != other).any(axis=1) | starts)
    if len(different):
        return int(different[0])
    return None if len(measured) == len(replayed) else shorter


def _errors(steps: pd.DataFrame) -> dict[str, float]:
    if steps.empty:
        return {}
    return {"count": len(steps), **relative_errors(steps)}


def relative_errors(steps: pd.DataFrame) -> dict[str, float]:
    """MAPE, bias (mean signed error) and error of the total time of `predicted` against `measured`, in %."""
    measured, predicted = steps["measured"].to_numpy(), steps["predicted"].to_numpy()
    relative = 100 * (predicted - measured) / measured
    return {
        "mape_pct": float(np.abs(relative).mean()),
        "bias_pct": float(relative.mean()),
        "total_error_pct": float(100 * (predicted.sum() / measured.sum() - 1)),
    }
