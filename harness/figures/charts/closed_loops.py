"""Simulated against measured latencies of many closed-loop benchmarks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.figures.chart import NUM_COLORS, Axis, Chart, Panel, Series

_BAND = 0.1
_MARKERS = "o^sD"  # the next one when all colours are taken
_CASE = {"prompt": "isl", "output": "osl", "GPUs": "tensor_parallel_size", "clients": "concurrency"}


def rows_chart(table: pd.DataFrame, subtitle: str, by: str = "tensor_parallel_size", title: str = "GPUs") -> Chart:
    """A panel each for TPOT and TTFT: simulated over measured, a colour for each value of the column `by`.

    `table` has a row per benchmark with ttft_ms, tpot_ms, simulated_ttft_ms, simulated_tpot_ms.
    """
    panels = [_panel(table, name, by) for name in ("tpot", "ttft")]
    return Chart("Public measurements, simulated", subtitle, panels, legend=title)


def _panel(table: pd.DataFrame, name: str, by: str) -> Panel:
    measured, simulated = f"{name}_ms", f"simulated_{name}_ms"
    known = table[(table[measured] > 0) & (table[simulated] > 0)]
    both = known[[measured, simulated]].to_numpy(dtype=np.float64)
    low, high = (both.min() / 1.2, both.max() * 1.2) if len(both) else (1.0, 10.0)
    ends = np.array([low, high])
    series = [
        Series("", "band", ends, ends, "line", low=ends * (1 - _BAND), high=ends * (1 + _BAND)),
        Series("", "line", ends, ends, "grey"),
    ]
    for place, (value, rows) in enumerate(known.groupby(by, sort=True)):
        texts = {label: [f"{each:g}" for each in rows[key]] for label, key in _CASE.items() if key in rows}
        color, marker = place % NUM_COLORS, _MARKERS[place // NUM_COLORS % len(_MARKERS)]
        x, y = rows[measured].to_numpy(), rows[simulated].to_numpy()
        series.append(Series(str(value), "points", x, y, color, marker=marker, texts=texts))
    errors = np.abs(known[simulated] / known[measured] - 1)
    facts = f"error: median {errors.median():.1%}, p90 {errors.quantile(0.9):.1%}\ngrey: ±10 %"
    x_axis = Axis(f"measured {name.upper()}, ms", log=True, start=low, end=high)
    y_axis = Axis("simulated, ms", log=True, start=low, end=high)
    return Panel(f"Mean {name.upper()}", x_axis, y_axis, series, facts=facts, height_in=2.6)
