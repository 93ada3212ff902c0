"""The metrics that comparisons draw: columns of the combined table with their titles, units and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.figures.chart import is_known
from harness.results.load import ALIKE
from harness.results.tables import Floats

if TYPE_CHECKING:
    import pandas as pd

_LATENCY = re.compile(r"(mean|median|p[\d.]+)_(ttft|tpot|itl|e2el|queue_time)_ms")
_SHARE = re.compile(r".*(_share|_rate|_usage|_waste|_attainment)$|mean_kv_\w+")
_KNOWN = {
    "output_throughput": ("Output throughput", "tok/s"),
    "output_throughput_per_gpu": ("Throughput per GPU", "tok/s per GPU"),
    "total_token_throughput": ("Total throughput", "tok/s"),
    "request_throughput": ("Requests served", "requests/s"),
    "served_rate": ("Served rate", "requests/s"),
    "offered_rate": ("Offered rate", "requests/s"),
    "request_goodput": ("Goodput", "requests/s"),
    "goodput_share": ("Requests within the SLO", "% of requests"),
    "interactivity": ("Interactivity", "tok/s per user"),
    "mean_kv_cache_usage": ("Mean KV use", "% of blocks"),
    "prefix_cache_hit_rate": ("Prefix cache hits", "% of prompt tokens"),
    "preemptions": ("Preemptions", "events"),
}


@dataclass(frozen=True)
class Metric:
    """A column of the combined table as it is drawn: values are multiplied by `scale` to be in `unit`."""

    column: str
    title: str
    unit: str
    scale: float = 1.0

    def values(self, table: pd.DataFrame, suffix: str = "") -> Floats:
        """float64[rows], in the unit; NaN where the table has no such column. suffix: `_low` or `_high`."""
        name = f"{self.column}{suffix}"
        if name not in table:
            return np.full(len(table), np.nan)
        from pandas import to_numeric  # imported late: a run in the terminal shows its tail and draws nothing

        return to_numeric(table[name]).to_numpy(dtype=np.float64) * self.scale

    def slo(self, table: pd.DataFrame) -> float | None:
        """The SLO that all runs have for this percentile, in the unit of the metric; None without one."""
        match = _LATENCY.fullmatch(self.column)
        name = f"slo_{match[2]}_ms" if match else ""
        if match is None or name not in table or match[1] != slo_statistic(table):
            return None
        limits = table[name].dropna().unique()
        return float(limits[0]) if len(limits) == 1 else None


def metric(column: str) -> Metric:
    """How a column is drawn; one that is not known by name is drawn as it is."""
    if match := _LATENCY.fullmatch(column):
        statistic = {"mean": "Mean", "median": "Median"}.get(match[1], match[1])
        return Metric(column, f"{statistic} {match[2].replace('_', ' ').upper()}", "ms")
    scale = 100.0 if is_share(column) else 1.0
    title, unit = _KNOWN.get(column, (column.replace("_", " "), "%" if scale == 100 else ""))
    return Metric(column, title, unit, scale)


def is_share(column: str) -> bool:
    """Whether the values of a column are shares, from 0 to 1."""
    return bool(_SHARE.fullmatch(column)) and column not in ("offered_rate", "served_rate")


def headline_metrics(table: pd.DataFrame) -> list[Metric]:
    """The metrics that are compared, most asked for first; those without a value other than 0 are left out."""
    tail = tail_percentile(list(map(str, table.columns)))
    wanted = (
        f"{tail}_ttft_ms", f"{tail}_tpot_ms", "output_throughput", "goodput_share", "median_ttft_ms", "median_tpot_ms",
        "mean_kv_cache_usage", "preemptions", "prefix_cache_hit_rate",
    )  # fmt: skip
    return [metric(name) for name in wanted if name in table and has_data(table, metric(name))]


def has_data(table: pd.DataFrame, shown: Metric) -> bool:
    """Whether a metric is defined, and not 0, in at least one row."""
    values = shown.values(table)
    return bool(np.isfinite(values).any()) and bool(np.nan_to_num(values).any())


def tail_percentile(columns: Sequence[str]) -> str:
    """p99 where there is one, otherwise the highest percentile up to 100."""
    found = [match[1] for column in columns if (match := re.fullmatch(r"p([\d.]+)_ttft_ms", column))]
    return "p99" if "99" in found or not found else f"p{max(found, key=float)}"


def tail_of(record: Mapping[Any, Any]) -> str:
    """The percentile that stands for the tail of a summary: that of its SLO, otherwise p99 or the highest there is."""
    of_slo = record.get("slo_percentile")
    if is_known(of_slo) and f"p{of_slo:g}_ttft_ms" in record:
        return f"p{of_slo:g}"
    tail = tail_percentile(list(map(str, record)))
    return tail if f"{tail}_ttft_ms" in record else "median"


def slo_statistic(table: pd.DataFrame) -> str:
    """The percentile that the SLO is about: `slo_percentile` of the summaries, or the tail."""
    known = table["slo_percentile"].dropna().unique().tolist() if "slo_percentile" in table else []
    return f"p{known[0]:g}" if len(known) == 1 else tail_percentile(list(map(str, table.columns)))


def per_gpu(table: pd.DataFrame) -> Floats:
    """float64[rows]: output tokens/s per GPU; of results that do not say so, by their tensor parallelism."""
    total = metric("output_throughput").values(table)
    has_ranks = "tensor_parallel_size" in table
    gpus = metric("tensor_parallel_size").values(table) if has_ranks else np.ones(len(table))
    known = metric("output_throughput_per_gpu").values(table)
    return np.where(np.isnan(known), total / np.where(np.isnan(gpus), 1, gpus), known)


def interactivity(table: pd.DataFrame) -> Floats:
    """float64[rows]: output tokens/s that the median user gets, 1000 / median TPOT in ms."""
    known, tpot = metric("interactivity").values(table), metric("median_tpot_ms").values(table)
    reciprocal = np.divide(1e3, tpot, out=np.full_like(tpot, np.nan), where=tpot > 0)
    return np.where(np.isnan(known), reciprocal, known)


def by_throughput(rows: Sequence[Mapping[Any, Any]]) -> list[list[Mapping[Any, Any]]]:
    """Groups of rows that serve alike, from the highest output throughput to the lowest.

    Those of a group are within `ALIKE` of its highest, as all are that keep up with the same arrivals. They stand from
    the lowest TTFT of the tail to the highest.
    """
    tail = tail_of(rows[0]) if rows else "p99"
    groups: list[list[Mapping[Any, Any]]] = []
    for row in sorted(rows, key=lambda row: -throughput(row)):
        if not groups or throughput(row) < (1 - ALIKE) * throughput(groups[-1][0]):
            groups.append([])
        groups[-1].append(row)
    return [sorted(group, key=lambda row: _known(row.get(f"{tail}_ttft_ms"), math.inf)) for group in groups]


def throughput(row: Mapping[Any, Any]) -> float:
    """Output tokens/s; 0 where they are not known."""
    return _known(row.get("output_throughput"), 0.0)


def _known(value: Any, otherwise: float) -> float:
    return value if is_known(value) else otherwise
