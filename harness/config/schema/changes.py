"""What changes the servers of a fleet while it runs: failures, and an autoscaler."""

from typing import Annotated, Literal

from pydantic import Field

from harness.config.schema.base import ConfigModel, PositiveFloat, PositiveInt, within
from harness.config.schema.fleet import AlikeFleet, FleetConfig
from harness.config.schema.metrics import SloConfig

_TARGETS = {"requests": 32.0, "queue": 4.0, "kv_use": 0.7}
_Seconds = Annotated[float, Field(gt=0, le=10_000_000)]


class FailureConfig(ConfigModel):
    """A server dies.

    Attributes:
        server: its number, from 0.
        time_s: when, since the start of the run.
        down_s: so many s later it is back, with an empty cache; null: never.
    """

    server: Annotated[int, Field(ge=0)]
    time_s: _Seconds
    down_s: _Seconds | None = None


class AutoscalerConfig(ConfigModel):
    """Starts and drains servers; `replicas` is their number at the start.

    Attributes:
        metric: none; requests, those that have not ended per server; queue, waiting requests per server; kv_use, the
            share of the KV pools in use; slo, the share of the requests that ended since the last reading within
            metrics.slo.
        target: of the metric; null takes 32 requests, a queue of 4, 0.7 of the pools, or metrics.slo.percentile percent
            within the SLO.
        fewest: servers at least.
        most: servers at most.
        interval_s: the metric is read every so many s.
        start_up_s: from the decision until a new server takes requests.
        hold_s: servers are drained when fewer were enough for so long.
    """

    metric: Literal["none", "requests", "queue", "kv_use", "slo"] = "none"
    target: PositiveFloat | None = None
    fewest: PositiveInt = 1
    most: Annotated[int, within("replicas")] = 8
    interval_s: _Seconds = 15.0
    start_up_s: _Seconds = 120.0
    hold_s: _Seconds = 300.0

    @property
    def is_on(self) -> bool:
        return self.metric != "none"

    def aim(self, slo_percentile: float) -> float:
        """The target, or its default, which for an SLO is its percentile."""
        return self.target or {**_TARGETS, "slo": slo_percentile / 100}[self.metric]


def check_changes(
    failures: tuple[FailureConfig, ...],
    autoscaler: AutoscalerConfig,
    fleet: FleetConfig,
    num_servers: int,
    *,
    replicas: int,
    is_plain: bool,
    slo: SloConfig,
) -> None:
    """Raise ValueError where servers cannot come and go. `is_plain`: they are simulated, have one lane each, no ranks
    that step together and no tiers, and each serves one sequence per request."""
    if not (failures or autoscaler.is_on):
        return
    if not isinstance(fleet, AlikeFleet) or not is_plain:
        raise ValueError(
            "failures and autoscaler.metric: need engine=sim fleet=replicas tiers=none pipeline_parallel_size=1 "
            "data_parallel_size=1"
        )
    if missing := [each.server for each in failures if each.server >= num_servers]:
        raise ValueError(f"failures: server {missing[0]} of {num_servers}, which are numbered from 0")
    if not autoscaler.is_on:
        return
    if not autoscaler.fewest <= replicas <= autoscaler.most:
        raise ValueError(
            f"replicas={replicas}: must be from autoscaler.fewest={autoscaler.fewest} to "
            f"autoscaler.most={autoscaler.most}"
        )
    if autoscaler.metric == "slo" and slo == SloConfig(percentile=slo.percentile):
        raise ValueError("autoscaler.metric=slo: needs a limit to hold, such as metrics.slo.ttft_ms=500")
    if autoscaler.metric in ("kv_use", "slo") and (aim := autoscaler.aim(slo.percentile)) >= 1:
        source = "" if autoscaler.target else f", from metrics.slo.percentile={slo.percentile:g}"
        raise ValueError(f"autoscaler.target={aim:g}{source}: must be < 1 for {autoscaler.metric}")
