"""Whether a run was overloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.results.load import Load

Verdict = Literal["stable", "overloaded", "unclear", "closed"]
_OPEN = ("poisson", "gamma", "constant", "trace")  # kinds of arrivals that have a rate whatever the system does


def verdict_of(load: Load, meta: Mapping[str, Any]) -> Verdict:
    """closed: arrivals wait for the system (closed loop, sessions) or all come at once, so that no rate is offered."""
    if meta.get("arrival") not in _OPEN or not load.arrival_window_s > 0:
        return "closed"
    grown = load.queue_growth * load.arrival_window_s
    offered = load.offered_rate * load.arrival_window_s
    if grown > 0.06 * offered and load.served_rate < 0.95 * load.offered_rate:
        return "overloaded"
    return "unclear" if grown > 0.03 * offered else "stable"
