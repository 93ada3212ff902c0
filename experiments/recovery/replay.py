"""What our scheduling core decides when its steps take the recovered times of a measured run."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.recovery.request_log import Ints, RequestLog
from experiments.recovery.steps import Price, Span, timed
from harness.measured.measured_run import MeasuredRun, whole_ns
from harness.validation.steps import GivenTimes, serve_at
from simulator.system import System


def replay(system: System, run: MeasuredRun, log: RequestLog, spans: Iterable[Span], price: Price) -> dict[str, Ints]:
    """Simulate `run` with requests at the times at which vLLM received them and with the recovered step times.

    Returns: int64[requests] each, in ns: how much later than measured a request was scheduled (if the log records that)
    and got its first and its last token.
    """
    times = GivenTimes(time for _, _, time in timed(spans, price))
    served = serve_at(system, run.trace, log.seen_ns, times).requests
    late = (
        {} if log.scheduled_ns is None else {"scheduled": whole_ns(served["first_scheduled_time"]) - log.scheduled_ns}
    )
    return late | {
        "first_token": whole_ns(served["first_token_time"]) - log.first_token_ns,
        "last_token": whole_ns(served["finish_time"]) - log.last_token_ns,
    }
