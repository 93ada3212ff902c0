"""Runs of the same configuration and load as one row: means over seeds with 95 % intervals, and differences in %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import ConfigError
from harness.figures.drawn_metrics import is_share
from harness.results.statistics.distributions import t_quantile
from harness.studies.comparison.parameters import SEED

_COVERAGE = 0.95
_BOUNDS = ("_low", "_high")


def configurations(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration and load of the runs that did not fail, in their order, with `num_runs`.

    A number is the mean over the repetitions; `<name>_low` and `<name>_high` are its t interval, and for a single run
    those of its summary, if it has some. Anything else is there where all repetitions agree; `verdict` is that
    of all or `unclear`, and `slo_met` says whether all meet the SLO. attrs are those of `combine`.
    """
    alive = runs[runs["status"] != "failed"]
    parameters, load = runs.attrs["parameters"], runs.attrs["load"]
    keys = ["simulated", "label", *parameters, *([load] if load else [])]
    if not (parameters or load or runs.attrs["repeats"]):
        keys = ["run"]
    groups = [group for _, group in alive.groupby(keys, sort=False, dropna=False)] if len(alive) else []
    table = pd.DataFrame([_one_row(group) for group in groups])
    counts = {f"num_{status}": int((runs["status"] == status).sum()) for status in ("failed", "interrupted")}
    table.attrs.update(runs.attrs | counts)
    return table


def with_differences(table: pd.DataFrame, baseline: str | int | None, metrics: Sequence[str]) -> pd.DataFrame:
    """The table with `<metric>_vs_baseline_pct`, the difference from the baseline's row at the same load, in percent.

    baseline: label, name of a run, or index of a configuration; None is the first that was given, attrs["first"]. Its
    label is in attrs["baseline"].

    Raises:
        ConfigError: no configuration has that label or index.
    """
    label = baseline_label(table, baseline)
    load = table.attrs["load"]
    reference = table[table["label"] == label]
    table = table.copy()
    at = table[load] if load else pd.Series(0, index=table.index)
    for metric in (name for name in metrics if name in table):
        values = pd.to_numeric(reference[metric]).to_numpy(dtype=np.float64)
        base = pd.Series(values, index=reference[load] if load else [0] * len(reference))
        known = at.map(base[~base.index.duplicated()]).astype(float)
        table[f"{metric}_vs_baseline_pct"] = (pd.to_numeric(table[metric]) / known.where(known > 0) - 1) * 100
    table.attrs["baseline"] = label
    return table


def baseline_label(table: pd.DataFrame, baseline: str | int | None) -> str:
    """The label of the configuration that the others are compared with."""
    labels = table["label"].drop_duplicates().tolist()
    if baseline is None and table.attrs.get("first") in labels:
        return str(table.attrs["first"])
    if isinstance(baseline, int) and -len(labels) <= baseline < len(labels) or baseline is None:
        return str(labels[baseline or 0])
    if baseline in labels:
        return str(baseline)
    named = table.loc[table["run"] == baseline, "label"].tolist()
    if named:
        return str(named[0])
    raise ConfigError(
        f"report.baseline={baseline}: give an index below {len(labels)} or one of {'; '.join(labels[:20])}"
    )


def _one_row(group: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in map(str, group.columns):
        values = group[name]
        if len(group) > 1 and name.endswith(_BOUNDS) and name.rpartition("_")[0] in group:
            continue  # of the single runs
        if values.nunique(dropna=False) == 1:
            row[name] = values.iloc[0]
        elif name != SEED and pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            row[name] = float(values.mean())
            row |= dict(
                zip(
                    (f"{name}_low", f"{name}_high"),
                    t_interval(values, most=1.0 if is_share(name) else math.inf),
                    strict=True,
                )
            )
        else:
            row[name] = None
    if "verdict" in group:
        row["verdict"] = _common_verdict(group["verdict"].tolist())
    if "slo_met" in group:
        met = group["slo_met"].tolist()
        row["slo_met"] = None if any(each is None or each != each for each in met) else all(met)
    row["status"] = "interrupted" if (group["status"] == "interrupted").any() else "complete"
    return {**row, "num_runs": len(group)}


def t_interval(values: pd.Series[Any], most: float = math.inf) -> tuple[float, float]:
    """The 95 % interval of the mean by Student's t, within 0 (of amounts) and `most`; NaN of fewer than two values."""
    known = values.dropna().to_numpy(dtype=np.float64)
    if len(known) < 2:
        return math.nan, math.nan
    half = t_quantile((1 + _COVERAGE) / 2, len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    mean, is_amount = float(known.mean()), bool((known >= 0).all())
    return max(mean - half, 0.0) if is_amount else mean - half, min(mean + half, most)


def _common_verdict(verdicts: Sequence[Any]) -> str | None:
    """The verdict of all repetitions; `unclear` where they disagree, None where none has one."""
    known = [str(each) for each in verdicts if isinstance(each, str)]
    if not known:
        return None
    return known[0] if len(set(known)) == 1 else "unclear"
