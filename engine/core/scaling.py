"""How many servers a fleet should have, from a reading of a metric every so often.

As Kubernetes' horizontal pod autoscaler does: number · value / target, rounded up, unless the value is near the target;
and fewer servers only once that many were enough at every reading for a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Literal

Metric = Literal["requests", "queue", "kv_use", "slo"]
_NEAR = 0.1  # of the target; what the horizontal pod autoscaler calls its tolerance
_MOST_AT_ONCE = 2.0  # times as many servers for a broken SLO, however badly it is broken


@dataclass(frozen=True)
class Scaling:
    """Settings of an autoscaler.

    Attributes:
        metric: requests or waiting requests per server, the share of the KV pools in use, or the share of the requests
            that ended since the last reading within the SLO.
        target: of the metric, above 0; for `slo` below 1.
        fewest, most: bounds of the number of servers.
        hold_readings: fewer servers must be enough at so many readings.
    """

    metric: Metric
    target: float
    fewest: int
    most: int
    hold_readings: int = 1


class Autoscaler:
    def __init__(self, options: Scaling) -> None:
        self._options = options
        self._recent: deque[int] = deque(maxlen=options.hold_readings)  # numbers that were enough

    def desired(self, num_servers: int, value: float) -> int:
        """The number of servers to have, where `num_servers` have this value of the metric."""
        options = self._options
        if options.metric == "slo":
            enough = self._for_slo(num_servers, (1 - value) / (1 - options.target))
        else:
            ratio = value / options.target
            enough = num_servers if abs(ratio - 1) <= _NEAR else ceil(num_servers * ratio)
        self._recent.append(min(max(enough, options.fewest), options.most))
        return max(self._recent) if len(self._recent) == options.hold_readings else max(num_servers, *self._recent)

    @staticmethod
    def _for_slo(num_servers: int, spent: float) -> int:
        """By the share of the requests beyond a limit, in terms of what the target allows: one server fewer where half
        of that is left."""
        if spent > 1:
            return ceil(num_servers * min(spent, _MOST_AT_ONCE))
        return num_servers - 1 if spent < 0.5 else num_servers
