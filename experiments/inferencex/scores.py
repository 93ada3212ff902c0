"""Errors by case and by concurrency, and rows whose measurement cannot be right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

_SLOWER = 1.1  # fewer clients cannot have a TPOT this much longer
_COLUMNS = ("tpot", "ttft", "peer_tpot", "peer_ttft")


def scores(table: pd.DataFrame) -> dict[str, Any]:
    """Median and 90th percentile of absolute errors in percent, in all, by case and by concurrency."""
    sound = table[table["excluded"] == ""]
    excluded = table[table["excluded"] != ""]
    return {
        "all": _summary(sound),
        "by_case": {str(key): _summary(rows) for key, rows in sound.groupby("case", sort=False)},
        "by_concurrency": {str(key): _summary(rows) for key, rows in sound.groupby("concurrency")},
        "excluded": {str(reason): rows["id"].tolist() for reason, rows in excluded.groupby("excluded")},
    }


def _summary(rows: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {"rows": len(rows)}
    for name in _COLUMNS:
        column = f"{name}_error_pct"
        if column in rows and rows[column].notna().any():
            errors = rows[column].dropna()
            found[name] = float(errors.abs().median())
            found[f"{name}_p90"] = float(errors.abs().quantile(0.9))
            found[f"{name}_signed"] = float(errors.median())
    return found


def contradicted(table: pd.DataFrame) -> list[str]:
    """Why the measurement of each row cannot be right, "" where it can.

    A server cannot compute faster than the device's large matrix products, nor read its weights and KV cache faster
    than its memory; and a token of fewer clients cannot take longer than one of more clients. Where clients wait longer
    than their answers take, and TPOT is as with a quarter of them, the server had fewer seats than the row says.
    """
    too_fast = (table["implied_share_of_flops"] > 1) | (table["implied_share_of_bandwidth"] > 1)
    waiting = table["ttft_ms"] > table["tpot_ms"] * table["osl"]
    reasons = []
    rows: Iterable[Any] = table.itertuples(index=False)
    for place, row in enumerate(rows):
        same = (
            (table["isl"] == row.isl)
            & (table["osl"] == row.osl)
            & (table["tensor_parallel_size"] == row.tensor_parallel_size)
        )
        far_fewer = table["tpot_ms"][same & (table["concurrency"] <= row.concurrency / 4)]
        more = table["tpot_ms"][same & ~waiting & (table["concurrency"] > row.concurrency)]
        reason = ""
        if too_fast.iloc[place]:
            reason = "faster than the device's arithmetic or memory"
        elif waiting.iloc[place] and (_SLOWER * far_fewer > row.tpot_ms).any():
            reason = "the server ran fewer requests at a time than there were clients"
        elif (row.tpot_ms > _SLOWER * more).any():
            reason = "a run with more clients of the same server has a shorter TPOT"
        reasons.append(reason)
    return reasons
