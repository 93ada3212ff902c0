"""Numbers and settings in the words of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.figures.chart import is_known
from harness.figures.pages.elements import Cell
from harness.results.summary import number

if TYPE_CHECKING:
    import pandas as pd

LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "queue_time": "queue time",
}
_ARRIVALS = {
    "poisson": "arriving at random (Poisson)",
    "gamma": "arriving at random (gamma)",
    "constant": "arriving at a constant rate,",
    "trace": "arriving as in the trace",
    "all_at_once": "arriving all at once",
    "closed_loop": "from a closed loop of",
    "sessions": "in sessions",
}


def numeric(value: Any) -> float:
    return float(value) if is_known(value) else math.nan


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table by name of column."""
    return [dict(zip(map(str, table.columns), row, strict=True)) for row in table.itertuples(index=False, name=None)]


def number_cell(value: Any) -> Cell:
    return Cell(number(value if is_known(value) else math.nan), numeric(value))


def interval(record: Mapping[str, Any], key: str) -> str:
    """The 95 % interval of a key of a summary."""
    return interval_text(record.get(f"{key}_low"), record.get(f"{key}_high"))


def interval_text(low: Any, high: Any) -> str:
    """`a to b`, `a` where both are the same, `above a` where the upper bound is not known; nothing without the lower
    one."""
    if not is_known(low):
        return ""
    if low == high:
        return number(low)
    return f"{number(low)} to {number(high)}" if is_known(high) else f"above {number(low)}"


def count(amount: float, noun: str) -> str:
    return f"{amount:,.0f} {noun}{'' if amount == 1 else 's'}"


def limits_of(record: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, float]:
    """The SLO's limits in ms by latency, of the summary or of the configuration of an older one."""
    older = (config.get("metrics") or {}).get("slo") or {}
    found = {name: record.get(f"slo_{name}_ms", older.get(f"{name}_ms")) for name in ("ttft", "tpot", "e2el")}
    return {name: float(value) for name, value in found.items() if is_known(value)}


def slo_text(limits: Mapping[str, float], tail: str) -> str:
    return ", ".join(f"{tail} {LATENCIES[name]} at most {limit:g} ms" for name, limit in limits.items())


def device_text(record: Mapping[str, Any]) -> str:
    gpus = record.get("num_gpus") or record.get("tensor_parallel_size") or 1
    return f"{record.get('device') or 'an unknown device'}" + (f" x {gpus:g}" if gpus != 1 else "")


def arrival_text(config: Mapping[str, Any]) -> str:
    """`arriving at random (Poisson) at 12 requests/s`, from the group arrival of a configuration."""
    arrival = config.get("arrival") or {}
    kind = str(arrival.get("kind", "unknown"))
    text = _ARRIVALS.get(kind, f"with arrivals {kind}")
    if is_known(arrival.get("rate")):
        return f"{text} at {arrival['rate']:g} requests/s".replace(", at", ",")
    concurrency = arrival.get("concurrency")
    return f"{text} {count(concurrency, 'client')}" if is_known(concurrency) else text


def value_text(value: Any) -> str:
    """A setting as it is written on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(map(value_text, value))}]"
    return str(value)
