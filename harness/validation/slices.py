"""How much a server itself varied while task=observe measured it, which no simulation of one server predicts.

The slices of a load are repeated measurements of it at other times. A simulation of the same arrivals has the same
requests, so what the two differ by from slice to slice is the server and not which requests came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.results.tables import Floats
from harness.validation.error_statistics import STATISTICS, latency_statistics

_PARTS = 20  # that are drawn: some seconds of a slow server are followed by more of them
_DRAWS = 200  # of a bootstrap: its standard errors are known to 5 %
_METRICS = ("ttft", "tpot", "e2el")
_THIRDS = ("first", "second", "last")


def with_noise_of_slices(errors: pd.DataFrame, measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """`errors`, as of `comparison`, with the noise floors of latencies: two standard errors of their error_pct.

    The standard errors are those of a bootstrap over the slices of the measured requests, of which neighbours are drawn
    together; both tables have the same requests in the same order. None is known of one slice.
    """
    each = list(measured.groupby("slice").indices.values())
    if len(each) < 2:
        return errors
    parts = np.array_split(np.arange(len(each)), min(len(each), _PARTS))
    slices = [np.concatenate([each[i] for i in part]) for part in parts]
    rng, floors = np.random.default_rng(0), dict[tuple[str, str], float]()
    draws = [np.concatenate([slices[i] for i in rng.integers(len(slices), size=len(slices))]) for _ in range(_DRAWS)]
    unbiased = np.sqrt(len(slices) / (len(slices) - 1))
    for metric in _METRICS:
        one, other = (table[metric].to_numpy(dtype=np.float64) for table in (measured, simulated))
        found = np.array([_relative(one[rows], other[rows]) for rows in draws])
        for statistic, spread in zip(STATISTICS, found.std(axis=0).tolist(), strict=True):
            floors[metric, statistic] = 200 * unbiased * spread
    names = zip(errors["metric"], errors["statistic"], errors["noise_floor_pct"], strict=True)
    return errors.assign(noise_floor_pct=[floors.get((metric, name), floor) for metric, name, floor in names])


def _relative(measured: Floats, simulated: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):  # what is 0 or was not measured has no error
        return np.array(latency_statistics(simulated)) / np.array(latency_statistics(measured)) - 1


def slice_table(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """A row per slice: slice, load (requests/s), held_out, start_s, num_requests; mean TTFT in ms and time from first
    to last tokens in s, measured and simulated; and pace_pct, how much more than in the whole run decodes took
    beside the simulation. The tables are of whole runs, with the same requests in the same order."""
    columns: dict[str, Any] = {}
    for name, table in (("measured", measured), ("simulated", simulated)):
        columns[f"ttft_{name}_ms"] = table["ttft"].to_numpy() * 1e3
        columns[f"decode_{name}_s"] = (table["finish_time"] - table["first_token_time"]).to_numpy()
    groups = measured[["slice", "load", "held_out", "arrival_time"]].assign(**columns).groupby("slice")
    firsts = groups[["load", "held_out", "arrival_time"]].first().rename(columns={"arrival_time": "start_s"})
    decodes = groups[["decode_measured_s", "decode_simulated_s"]].sum()
    ratio = decodes["decode_measured_s"] / decodes["decode_simulated_s"].where(decodes["decode_simulated_s"] > 0)
    whole = decodes["decode_measured_s"].sum() / decodes["decode_simulated_s"].sum() if ratio.notna().any() else np.nan
    return pd.concat(
        [firsts, groups.size().rename("num_requests"), groups[["ttft_measured_ms", "ttft_simulated_ms"]].mean(),
         decodes, (100 * (ratio / whole - 1)).rename("pace_pct")], axis=1,
    ).reset_index()  # fmt: skip


def drift(slices: pd.DataFrame) -> dict[str, Any]:
    """What validation.json says of the slices: their number, tenth and ninetieth percentile of their pace_pct, and the
    pace_pct of each third of the run, None where nothing was decoded; and the same in one line."""
    known = slices[slices["decode_simulated_s"] > 0]
    if len(known) < len(_THIRDS):
        return {"count": len(slices), "pace_p10_pct": None, "pace_p90_pct": None, "pace_thirds_pct": None, "text": ""}
    low, high = np.percentile(known["pace_pct"], [10, 90]).tolist()
    thirds = [_pace(known.iloc[rows]) for rows in np.array_split(np.arange(len(known)), len(_THIRDS))]
    of_thirds = [100 * (third / _pace(known) - 1) for third in thirds]
    parts = ", ".join(f"{name} {third:+.1f} %" for name, third in zip(_THIRDS, of_thirds, strict=True))
    text = (
        f"the server itself: decodes of {len(slices)} slices took {low:+.1f} % (p10) to {high:+.1f} % (p90) longer "
        f"than those of the whole run; by thirds of it: {parts}"
    )
    return {"count": len(slices), "pace_p10_pct": low, "pace_p90_pct": high, "pace_thirds_pct": of_thirds, "text": text}


def _pace(slices: pd.DataFrame) -> float:
    """How much longer decodes took than simulated, as a ratio."""
    return float(slices["decode_measured_s"].sum() / slices["decode_simulated_s"].sum())
