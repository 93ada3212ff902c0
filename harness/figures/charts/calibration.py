"""A calibration: its constants before and after the fit, within their limits, and the errors before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Axis, Chart, Mark, Panel, Series

_ROW_IN = 0.28  # of a constant, whose name and values take two lines


def calibration_chart(document: Mapping[str, Any], plot: PlotConfig) -> Chart:
    """The content of a calibration.yaml. Calibrations of earlier versions do not have the constants before the fit and
    the errors one by one: then the fitted values and the whole error are drawn."""
    objective, data = document.get("objective") or {}, document.get("fitted_on") or {}
    facts = [f"cost={document.get('cost')}", f"fitted to {data.get('engine')}, {data.get('num_requests')} requests"]
    facts.append("grey lines: from the lower to the upper limit of a constant, or from 0")
    whole = f"{objective.get('before', np.nan):.2%} before, {objective.get('after', np.nan):.2%} after"
    evaluations = f"{whole}\n{objective.get('evaluations', 'unknown')} evaluations"
    errors = _errors(objective)
    panels = [
        _constants(document, plot),
        _panel(
            "Errors", list(errors), [(100 * before, 100 * after) for before, after in errors.values()],
            Axis("error, %"), facts=evaluations, marks=[Mark("none", "x", 0.0, "grey")],
        ),
    ]  # fmt: skip
    return Chart("A calibration of the cost model", " · ".join(facts), panels, legend="")


def _constants(document: Mapping[str, Any], plot: PlotConfig) -> Panel:
    """Each constant as a share of its range: from its low to its high limit, or from 0 to its value."""
    objective = document.get("objective") or {}
    start, limits = objective.get("start") or {}, objective.get("limits") or {}
    labels, values = [], []
    for name in start or document["constants"]:
        before, after = start.get(name, np.nan), document["constants"][name]
        low, high = limits.get(name, (0.0, max(abs(after), 1e-9)))
        values.append([(value - low) / ((high - low) or 1) for value in (before, after)])
        shown = plot.name(name) if plot.name(name) != name else name.replace("_", " ")
        was = f"{before:.3g} → " if np.isfinite(before) else ""
        labels.append(f"{shown}\n{was}{after:.3g}")
    limits_axis = Axis(names=("lower limit", "upper limit"), start=-0.03, end=1.03)
    return _panel("Constants", labels, values, limits_axis, (0.0, 1.0), facts="before → after")


def _errors(objective: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    before, after = objective.get("errors_before") or {}, objective.get("errors_after") or {}
    found = {name: (before[name], after[name]) for name in before if name in after}
    return found or {"all": (objective.get("before", np.nan), objective.get("after", np.nan))}


def _panel(
    title: str,
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
    x: Axis,
    limits: tuple[float, float] | None = None,
    **more: Any,
) -> Panel:
    """A row per name: its values before the fit (hollow) and after it, on a line from one to the other or of limits."""
    places = np.arange(len(labels), dtype=np.float64)
    before, after = np.array(values, dtype=np.float64).T
    low, high = (
        (np.minimum(before, after), np.maximum(before, after))
        if limits is None
        else (np.full(len(labels), limit) for limit in limits)
    )
    series = [
        Series("", "points", after, places, "grey", low=low, high=high),
        Series("before the fit", "points", before, places, 0, marker="o", hollow=True),
        Series("after the fit", "points", after, places, 1, marker="o"),
    ]
    height = _ROW_IN * len(labels) + 1.0
    return Panel(title, x, Axis(names=tuple(labels)), series, height_in=height, **more)
