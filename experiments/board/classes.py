"""Errors of the board's points by class, and the known errors that runs take from them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from experiments.board.point import FLEET, METRICS
from harness.engines.resolving.known_error import KERNELS, LEVELS, SCALED, RunClass, Spread, left_out_of

CLASS = ["engine", "version", "device", "model", "kind", "precision", "cost", "load"]
_SHOWN = ("tpot", "ttft", "throughput", "e2el")


def without_repeated(table: pd.DataFrame) -> pd.DataFrame:
    """`table` in which measurements that stand under several names count once: DeepSeek-V3's are those of R1."""
    measured = {f"measured_{name}": table[f"measured_{name}"].round(1) for name in METRICS}
    keys = ["source", "engine", "device", "kind", "cost", "num_gpus", "clients", "prompt", "output", "statistic"]
    again = table[keys].assign(**measured).duplicated() & table["clients"].notna() & table["excluded"].eq("")
    return table.assign(excluded=table["excluded"].mask(again, "repeated under the name of another model"))


def classes(table: pd.DataFrame) -> pd.DataFrame:
    """Median and 90th percentile of absolute errors by class, that with the largest error of TPOT first."""
    counted = table[table["excluded"] == ""]
    rows = [
        {**dict(zip(CLASS, key, strict=True)), "points": len(part), "fitted": int(part["fitted"].sum()), **errors(part)}
        for key, part in counted.groupby(CLASS, dropna=False)
    ]
    found = pd.DataFrame(rows)
    return found.sort_values(
        [name for name in ("tpot", "throughput") if name in found], ascending=False, ignore_index=True
    )


def errors(part: pd.DataFrame) -> dict[str, float]:
    """Of each metric, and of the estimates of peers: median, 90th percentile and signed median of the errors."""
    found: dict[str, float] = {}
    for name in (*_SHOWN, *(f"peer_{each}" for each in _SHOWN)):
        each = part.get(f"{name}_error_pct", pd.Series(dtype=float)).dropna()  # stored tables lack empty columns
        if len(each):
            asked = (("", each.abs(), 0.5), ("_p90", each.abs(), 0.9), ("_signed", each, 0.5))
            found |= {f"{name}{key}": float(values.quantile(share)) for key, values, share in asked}
    return found


def known_errors(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each class of `LEVELS` that has points of servers of vLLM; of fleets those with prompts and decodes
    apart."""
    counted = table[(table["excluded"] == "") & (table["engine"] == "vLLM") & (table["load"] != FLEET)]
    counted = counted[counted["cost"].isin((KERNELS, SCALED, "roofline"))]
    rows: dict[RunClass, dict[str, Any]] = {}
    fields = counted[[*RunClass._fields]].astype(str).itertuples(index=False, name=None)
    of = [RunClass(*values) for values in fields]
    for left_out in LEVELS:
        keys = pd.Series([left_out_of(each, left_out) for each in of], index=counted.index)
        for key in keys.drop_duplicates():
            part = counted[[each == key for each in keys]]
            rows[key] = {**key._asdict(), "runs": len(part), **_spreads(part)}
    return pd.DataFrame(rows.values()).sort_values([*RunClass._fields], ignore_index=True)


def _spreads(part: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in METRICS:
        each = part[f"{name}_error_pct"].dropna()
        if len(each):
            asked = ((each.abs(), 0.5), (each.abs(), 0.9), (each, 0.5), (each, 0.1), (each, 0.9))
            spread = Spread(*(float(values.quantile(share)) for values, share in asked))
            found |= {f"{name}_{key}": value for key, value in spread._asdict().items()}
    return found
