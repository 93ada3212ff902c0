"""What our scheduling core decides when its steps take the recovered times of a real run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from engine.plan import StepPlan
from experiments.recovered_steps import Span, priced_by
from experiments.request_log import Ints, RequestLog
from harness.arrivals import make_arrivals
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import whole_ns
from harness.simulated import SimulatedEngine, cost_model

_NEVER_NS = 10**13  # longer than any run


class _Given:
    """Cost model that hands out the given times of steps in order, and then one that is longer than any run."""

    def __init__(self, times_ns: Iterable[int]) -> None:
        self._times = iter(times_ns)

    def step_ns(self, plan: StepPlan) -> int:
        return next(self._times, _NEVER_NS)

    def decode_ns(self, plan: StepPlan, num_steps: int) -> Ints:
        raise AssertionError("every step is taken on its own")


def replay(config: RunConfig, run: MeasuredRun, log: RequestLog, spans: Iterable[Span]) -> dict[str, Ints]:
    """Serve the requests of `run` with our scheduling core, at the times at which they were taken in, its steps as long
    as recovered (those of a span in proportion to their prices).

    Returns: int64[requests], how much later than measured, in ns, each was scheduled and had its first and last token.
    """
    price, times = priced_by(cost_model(config)), list[int]()
    for span in spans:
        prices = np.array([price(step) for step in span.steps])
        ends = np.rint(prices.cumsum() * (span.time_ns / prices.sum())) if len(prices) else prices
        times += np.diff(ends, prepend=0.0).astype(np.int64).tolist()
    trace = replace(run.trace, table=run.trace.table.assign(arrival_time=log.seen_ns * 1e-9))
    stepwise = config.model_copy(update={"engine": config.engine.model_copy(update={"compress": False})})
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(0))
    engine = SimulatedEngine(stepwise, trace, arrivals, _Given(times))
    engine.run()
    served = engine.recorder.tables(trace, engine.unfinished()).requests
    return {
        "scheduled": whole_ns(served["first_scheduled_time"]) - log.scheduled_ns,
        "first_token": whole_ns(served["first_token_time"]) - log.first_token_ns,
        "last_token": whole_ns(served["finish_time"]) - log.last_token_ns,
    }
