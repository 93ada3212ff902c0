"""The board on one page: predicted against measured, and errors by model, device, engine and load."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.figures.chart import Axis, Chart, Panel, Series
from harness.figures.charts.closed_loops import rows_chart

_LIMIT = 100.0  # percent; errors beyond are drawn at the edge
_LEAST = 3  # points of a bar


def board_chart(table: pd.DataFrame) -> Chart:
    """`table` has a row per point; those that are excluded are left out, and those of the roofline but in one panel."""
    counted = table[table["excluded"] == ""]
    priced = counted[counted["cost"] != "roofline"]
    both = priced.dropna(subset=["measured_tpot", "measured_ttft"])
    drawn = both.rename(columns={f"{old}_{name}": new for name in ("ttft", "tpot") for old, new in
                                 (("measured", f"{name}_ms"), ("predicted", f"simulated_{name}_ms"))})  # fmt: skip
    subtitle = "MEASURED: public benchmarks · SIMULATED: by kernels of NVIDIA's database"
    scatter = rows_chart(drawn, subtitle, by="engine", title="engine")
    vllm = priced[priced["engine"] == "vLLM"]
    clients = pd.cut(vllm["clients"], [0, 4, 16, 64, 1e9], labels=["1 to 4", "5 to 16", "17 to 64", "more"])
    loads = vllm["load"].where(vllm["clients"].isna(), "clients: " + clients.astype(str))
    panels = [
        _panel("vLLM, by model", vllm, vllm["model"] + " " + vllm["precision"]),
        _panel("vLLM, by GPU", vllm, vllm["device"].str.removeprefix("NVIDIA ")),
        _panel("by engine, and vLLM by the roofline", counted, counted["engine"].where(
            counted["cost"] != "roofline", counted["engine"] + ", roofline")),
        _panel("vLLM, by load", vllm, loads),
    ]  # fmt: skip
    return Chart("Every public measurement, simulated", subtitle, [*scatter.panels, *panels], legend="engine")


def _panel(title: str, table: pd.DataFrame, by: pd.Series[str]) -> Panel:
    """Median error of TPOT and, where sources tell none, of throughput, with the range of 8 in 10 points."""
    errors = table["tpot_error_pct"].fillna(-table["throughput_error_pct"]).clip(-_LIMIT, _LIMIT)
    groups = errors.groupby(by)
    spread = pd.DataFrame({name: groups.quantile(q) for name, q in (("low", 0.1), ("middle", 0.5), ("high", 0.9))})
    spread = spread.assign(n=groups.size()).query("n >= @_LEAST").sort_values("middle")
    low, middle, high = (spread[name].to_numpy() for name in ("low", "middle", "high"))
    places = np.arange(len(spread))
    series = [
        Series("", "points", middle, places, 0, marker="o", low=low, high=high),
    ]
    names = tuple(f"{name} ({count:.0f})" for name, count in spread["n"].items())
    return Panel(title, Axis("error of TPOT, %"), Axis(names=names), series, height_in=0.6 + 0.16 * len(spread))
