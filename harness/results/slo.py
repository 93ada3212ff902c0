"""Service-level objectives: how many requests meet them, and whether the run does.

A request is good when it meets every limit given. A run meets its SLO when the percentile `metrics.slo.percentile` of
each latency with a limit is within it, and the run is not overloaded; an overloaded system breaks every limit in time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.config import SloConfig
from harness.results.columns import floats, ratio

LIMITED = ("ttft", "tpot", "e2el")


def limits_ms(slo: SloConfig) -> dict[str, float]:
    """The limits given, by latency."""
    limits = {name: getattr(slo, f"{name}_ms") for name in LIMITED}
    return {name: limit for name, limit in limits.items() if limit is not None}


def goodput(finished: pd.DataFrame, offered: int, duration: float, slo: SloConfig) -> dict[str, Any]:
    """Requests that meet every limit: per second, and as a share of all `offered` ones; None without limits."""
    given = limits_ms(slo)
    if not given:
        return {"request_goodput": None, "goodput_share": None}
    good = np.ones(len(finished), dtype=bool)
    for name, limit in given.items():
        good &= _within(finished, name, limit)
    met = int(good.sum())
    return {"request_goodput": ratio(met, duration), "goodput_share": ratio(met, offered)}


def verdict_on_slo(finished: pd.DataFrame, slo: SloConfig, *, overloaded: bool, complete: bool) -> dict[str, Any]:
    """The limits, which share of the finished requests is within each, and whether the run meets them: `slo_met` is
    None without limits and for a run that ended early."""
    given = limits_ms(slo)
    limits = {f"slo_{name}_ms": given.get(name) for name in LIMITED}
    for name, limit in given.items():
        limits[f"slo_{name}_attainment"] = ratio(int(_within(finished, name, limit).sum()), len(finished))
    met: bool | None = None
    if given and complete:
        met = bool(len(finished)) and not overloaded
        met = met and all(_percentile(finished, name, slo.percentile) <= limit for name, limit in given.items())
    return {**limits, "slo_percentile": slo.percentile, "slo_met": met}


def _within(finished: pd.DataFrame, name: str, limit_ms: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool[n]; an undefined TPOT (NaN, of a request with one token) meets every limit."""
    return ~(floats(finished, name) * 1e3 > limit_ms)


def _percentile(finished: pd.DataFrame, name: str, percentile: float) -> float:
    seconds = floats(finished, name)
    seconds = seconds[~np.isnan(seconds)]
    return float(np.percentile(seconds, percentile)) * 1e3 if len(seconds) else 0.0
