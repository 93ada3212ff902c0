"""Service-level objectives: how many requests meet them, and whether the run does.

A request is good when it is served in full and meets every limit given. A run meets its SLO when the percentile
`metrics.slo.percentile` of each latency with a limit is within it, and the run is not overloaded; an overloaded system
breaks every limit in time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config import SloConfig
from harness.results.columns import floats, ratio, rows_where
from harness.results.measures.unserved import served
from harness.results.tables import Rows, percentiles_of

LIMITED = ("ttft", "tpot", "e2el")
_ENDLESS_MS = 1e300  # a latency that is beyond every limit, and that percentiles can interpolate to


def limits_ms(slo: SloConfig) -> dict[str, float]:
    """The limits given, by latency."""
    limits = {name: getattr(slo, f"{name}_ms") for name in LIMITED}
    return {name: limit for name, limit in limits.items() if limit is not None}


def goodput(requests: Rows, duration: float, slo: SloConfig) -> dict[str, Any]:
    """Requests that are served in full and meet every limit: per second, and as a share of all; None without limits."""
    given = limits_ms(slo)
    if not given:
        return {"request_goodput": None, "goodput_share": None}
    met = int(np.logical_and.reduce([~flags for flags in beyond_limits(requests, slo).values()]).sum())
    return {"request_goodput": ratio(met, duration), "goodput_share": ratio(met, len(requests))}


def verdict_on_slo(requests: Rows, slo: SloConfig, *, overloaded: bool, complete: bool) -> dict[str, Any]:
    """The limits, which share of the requests is within each, and whether the run meets them.

    `slo_met` is None without limits, without requests, and for a run that ended early. Requests that are not served in
    full are within no limit; those of which a run that ended early does not know are left out.
    """
    ended = rows_where((requests["status"] != "unfinished").to_numpy(), requests)
    given, beyond = limits_ms(slo), beyond_limits(ended, slo)
    limits = {f"slo_{name}_ms": given.get(name) for name in LIMITED}
    for name, flags in beyond.items():
        limits[f"slo_{name}_attainment"] = ratio(int((~flags).sum()), len(ended))
    met: bool | None = None
    if given and complete and len(ended):
        met = bool(served(ended).any()) and not overloaded
        met = met and all(_percentile(ended, name, slo.percentile) <= limit for name, limit in given.items())
    return {**limits, "slo_percentile": slo.percentile, "slo_met": met}


def beyond_limits(requests: Rows, slo: SloConfig) -> dict[str, npt.NDArray[np.bool_]]:
    """Which requests are beyond each limit given: those that are slower, and those that are not served in full. An
    undefined TPOT, of a request with one token, is within."""
    unserved = ~served(requests)
    return {name: unserved | (floats(requests, name) * 1e3 > limit) for name, limit in limits_ms(slo).items()}


def _percentile(requests: Rows, name: str, percentile: float) -> float:
    """In ms, over those that have the latency and those that are not served in full, which are slower than any."""
    milliseconds = floats(requests, name) * 1e3
    unserved = ~served(requests)
    milliseconds[unserved] = _ENDLESS_MS
    milliseconds = milliseconds[~np.isnan(milliseconds)]
    return float(percentiles_of(milliseconds, [percentile])[0]) if len(milliseconds) else 0.0
