"""Configuration of the metrics of a run: percentiles, service-level objectives, and how well they must be known."""

from typing import Annotated

from pydantic import Field

from harness.config.schema.base import ConfigModel, within
from harness.config.schema.traffic.workload import MAX_REQUESTS


class SloConfig(ConfigModel):
    """Service-level objectives in milliseconds. A request is good when it meets every one given; a run meets them when
    `percentile` percent of its requests are within each."""

    ttft_ms: Annotated[float, within("latency_ms")] | None = None
    tpot_ms: Annotated[float, within("latency_ms")] | None = None
    e2el_ms: Annotated[float, within("latency_ms")] | None = None
    percentile: Annotated[float, Field(gt=0, le=100)] = 99.0


class IntervalConfig(ConfigModel):
    """How well trace.num_requests=auto must know a metric.

    Attributes:
        metric: `<statistic>_<latency>`, such as p99_ttft, median_tpot or mean_e2el.
        width: half of its 95 % interval as a share of its value.
        max_requests: where to stop in any case.
    """

    metric: Annotated[str, Field(pattern=r"^(mean|median|p\d+(\.\d+)?)_(ttft|tpot|e2el)$")] = "p99_ttft"
    width: Annotated[float, Field(gt=0, le=1)] = 0.1
    max_requests: Annotated[int, Field(ge=1000, le=MAX_REQUESTS)] = 100_000


class MetricsConfig(ConfigModel):
    """What the summary reports, and of which requests.

    Attributes:
        percentiles: of the latencies to report, each 0 to 100.
    """

    percentiles: Annotated[tuple[Annotated[float, Field(ge=0, le=100)], ...], Field(strict=False, min_length=1)] = (
        50.0,
        90.0,
        95.0,
        99.0,
    )
    warmup: Annotated[float, within("cut_s")] = 0.0
    drain: Annotated[float, within("cut_s")] = 0.0
    slo: SloConfig = Field(default_factory=SloConfig)
    interval: IntervalConfig = Field(default_factory=IntervalConfig)
