"""Errors by case and by concurrency."""

from __future__ import annotations

from typing import Any

import pandas as pd

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
