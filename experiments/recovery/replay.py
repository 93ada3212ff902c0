"""What our scheduling core decides when its steps take the recovered times of a real run."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config import RunConfig
from harness.measured.measured_run import MeasuredRun, whole_ns
from experiments.recovery.request_log import Ints, RequestLog
from experiments.recovery.step_search import Price, Span, timed
from harness.validation.steps import GivenTimes, serve_at


def replay(
    config: RunConfig, run: MeasuredRun, log: RequestLog, spans: Iterable[Span], price: Price
) -> dict[str, Ints]:
    """Serve the requests of `run` with our scheduling core, at the times at which they were taken in, its steps as long
    as recovered.

    Returns: int64[requests], how much later than measured, in ns, each was scheduled, if the log tells when, and had
    its first and last token.
    """
    times = GivenTimes(time for _, _, time in timed(spans, price))
    served = serve_at(config, run.trace, log.seen_ns, times).requests
    late = (
        {} if log.scheduled_ns is None else {"scheduled": whole_ns(served["first_scheduled_time"]) - log.scheduled_ns}
    )
    return late | {
        "first_token": whole_ns(served["first_token_time"]) - log.first_token_ns,
        "last_token": whole_ns(served["finish_time"]) - log.last_token_ns,
    }
