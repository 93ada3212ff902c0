"""A measured run of vLLM with its recovered steps, and how far our scheduling core is from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.recovery.mixed import recover_mixed
from experiments.recovery.prefill_first import recover_prefill_first, with_receipt_times
from experiments.recovery.replay import replay
from experiments.recovery.request_log import Ints, LogError, RequestLog, read_client_log, read_engine_log
from experiments.recovery.steps import Price, Span, priced_by
from harness.config import TraceArrival
from harness.config.validation import Part
from harness.measured.measured_run import MeasuredRun
from harness.runs.simulated import SimulatedEngine
from harness.validation.steps import relative_errors
from harness.workload.arrivals import make_arrivals
from simulator.profile.cuda_graphs import graph_sizes
from simulator.system import System

_TO_MS = 1e-6


@dataclass(frozen=True, eq=False)
class RecoveredRun:
    """The steps of a run between the moments of its log.

    Attributes:
        log: the moments and times of the log.
        spans: between each moment and the next. The first may have taken any time, since an engine prepares what later
            steps use.
        price: prices by which the time of a span is divided among its steps.
        margin: as of `Recovered`; below 1 another division into steps fits about as well.
        late: how much later our scheduling core is than measured, as of `replay`.
    """

    log: RequestLog
    spans: list[Span]
    price: Price
    margin: float
    late: dict[str, Ints]

    @property
    def num_steps(self) -> int:
        return sum(len(span.steps) for span in self.spans)

    def largest_deviations_ms(self) -> dict[str, float]:
        """The largest deviation of our scheduling core from the log: of scheduling, first tokens and last tokens."""
        return {name: float(np.abs(times).max() * _TO_MS) for name, times in self.late.items()}

    def of_part(self, part: Part) -> list[Span]:
        """The spans to score, without the first one. Those of the first half of the requests begin before the engine
        received a request of the second half."""
        starts = np.cumsum([0, *(span.time_ns for span in self.spans)])[:-1]
        boundary = self.log.seen_ns[len(self.log.seen_ns) // 2]
        wanted = {"all": starts >= 0, "first_half": starts < boundary, "second_half": starts >= boundary}[part]
        return [span for span, is_in in zip(self.spans[1:], wanted[1:], strict=True) if is_in and span.steps]

    def misfit(self, price: Price, part: Part) -> float:
        """Sum of the absolute errors of the prices of spans, relative to the sum of their times."""
        spans = self.of_part(part)
        off = sum(abs(sum(map(price, span.steps)) - span.time_ns) for span in spans)
        return off / sum(span.time_ns for span in spans)

    def scored(self, price: Price, part: Part) -> pd.DataFrame:
        """A row per span: kind (decode or with prompts), num_steps, measured and predicted (s)."""
        rows = [
            (
                "with prompts" if any(step.chunks for step in span.steps) else "decode",
                len(span.steps),
                span.time_ns * 1e-9,
                sum(map(price, span.steps)) * 1e-9,
            )
            for span in self.of_part(part)
        ]
        return pd.DataFrame(rows, columns=["kind", "num_steps", "measured", "predicted"])


def recover(system: System, run: MeasuredRun) -> RecoveredRun:
    """The steps of `run`, a run of vLLM with the limits of `system`, whose cost model prices the steps.

    Raises:
        LogError: the log lacks data, no steps agree with it, the simulation refuses a request, or the scheduler is
            neither that of vLLM 1 nor that of its early versions.
    """
    scheduler = system.scheduler
    asynchronous = scheduler.policy == "admission_order" and scheduler.async_scheduling
    early = scheduler.policy == "prefill_first" and not (scheduler.async_scheduling or scheduler.enable_prefix_caching)
    if not (asynchronous or early):
        raise LogError("steps are recovered by the rules of scheduler=vllm and scheduler=vllm_v0: choose one of them")
    arrivals = make_arrivals(run.trace, TraceArrival(), np.random.default_rng(0))
    engine = SimulatedEngine(system, run.trace, arrivals)
    engine.run()
    served = engine.recorder.tables(run.trace, engine.unfinished()).requests
    if num_other := int((served["num_output_tokens"] != run.requests["num_output_tokens"]).sum()):
        raise LogError(f"{run.source}: {num_other} requests are refused or cut short in the simulation")
    price = priced_by(system.cost_model())
    log = read_client_log(run) if early else read_engine_log(run)
    try:
        if early:
            found = recover_prefill_first(log, pads_prompts=scheduler.max_padding is not None)
            log = with_receipt_times(log, found)
        else:
            limits = system.max_num_seqs, system.max_num_batched_tokens
            cached = served["num_cached_tokens"].astype(int).tolist()
            found = recover_mixed(log, cached, limits, price, graph_sizes(system.max_num_seqs))
    except LogError as error:
        raise LogError(f"{run.source}: {error}; steps cannot be recovered with these settings") from None
    late = replay(system, run, log, found.spans, found.price)
    return RecoveredRun(log, found.spans, found.price, found.margin, late)


def summary(recovered: RecoveredRun, price: Price, part: Part) -> dict[str, Any]:
    """Number of steps, deviations of our core from the log, and for each kind of span the number of spans and steps,
    MAPE, bias and error of the total time, in %."""
    scored = recovered.scored(price, part)
    kinds = {"all": scored, **{str(kind): rows for kind, rows in scored.groupby("kind")}}
    return {
        "num_steps": recovered.num_steps,
        "num_moments": len(recovered.log.moments),
        "margin": recovered.margin,
        "largest_deviation_ms": recovered.largest_deviations_ms(),
        "errors": {
            kind: {"num_spans": len(rows), "num_steps": int(rows["num_steps"].sum()), **relative_errors(rows)}
            for kind, rows in kinds.items()
            if len(rows)
        },
    }
