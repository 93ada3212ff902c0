"""What our scheduling core decides when its steps take the recovered times of a real run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from experiments.recovered_steps import Span, priced_by
from experiments.request_log import Ints, RequestLog
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import whole_ns
from harness.simulated import cost_model
from harness.validate_steps import GivenTimes, serve_at


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
    served = serve_at(config, run.trace, log.seen_ns, GivenTimes(times)).requests
    return {
        "scheduled": whole_ns(served["first_scheduled_time"]) - log.scheduled_ns,
        "first_token": whole_ns(served["first_token_time"]) - log.first_token_ns,
        "last_token": whole_ns(served["finish_time"]) - log.last_token_ns,
    }
