"""Panels that several figures of claims have: bars side by side, and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, fitting, head

Draw = Callable[[Axes], None]
Panel = tuple[str, str, Draw]
"""Title, facts below it, and what draws the panel."""

WAYS = {"simulated": "SIMULATED", "measured": "MEASURED"}
_HEADROOM = 1.35
_STEPS = {1: 0.6, 2: 0.4, 3: 0.28, 4: 0.2}  # from bar to bar, by the number of groups


def pictured(
    plot: PlotConfig, title: str, subtitle: str, panels: Sequence[Panel], height_in: float = 2.8, per_row: int = 2
) -> Figure:
    """A figure of these panels."""
    figure, axes = fitting(title, subtitle, len(panels), plot, height_in, per_row=per_row)
    for each, (name, facts, draw) in zip(axes, panels, strict=True):
        draw(each)
        head(each, name, facts)
    return figure


def bars(
    groups: Mapping[str, Sequence[float]],
    ticks: Sequence[str],
    unit: str = "",
    texts: Sequence[Sequence[str]] = (),
    legend_columns: int | None = 2,
) -> Draw:
    """A group of bars per colour, side by side at each tick; `texts` stand above the bars of each group.

    One group has no legend; legend_columns: None for no legend of several.
    """

    def draw(axes: Axes) -> None:
        step = _STEPS[len(groups)]
        for index, (label, values) in enumerate(groups.items()):
            places = [place + step * index for place in range(len(values))]
            width = step if len(groups) == 1 else step - 0.02
            drawn = axes.bar(places, values, width, color=COLORS[index], label=label)
            if texts:
                axes.bar_label(drawn, texts[index], fontsize=7.5)
        axes.set_xticks([place + step * (len(groups) - 1) / 2 for place in range(len(ticks))], ticks)
        axes.set_ylabel(unit)
        if len(groups) > 1 and legend_columns is not None:
            legend_above(axes, columns=legend_columns)

    return draw


def by_way(rows: Sequence[Mapping[str, float]], key: str, names: Mapping[Any, str], value: str) -> Draw:
    """Bars of the tiny model, simulated and measured, a colour for each of `names` of the rows' `key`."""
    groups = {label: [row[value] for row in rows if row[key] == name] for name, label in names.items()}
    return bars(groups, list(WAYS.values()))


def curves(
    series: Mapping[str, Sequence[Mapping[str, float]]], x: tuple[str, str], y: tuple[str, str], ticks: Sequence[int]
) -> Draw:
    """Curves over a logarithmic axis, simulated ones hollow; x, y: key of the rows and label."""

    def draw(axes: Axes) -> None:
        for index, (label, rows) in enumerate(series.items()):
            is_way, is_measured = label in WAYS.values(), label == WAYS["measured"]
            color = COLORS[0 if is_way else index]
            style = "s-" if is_measured else "o--" if is_way else "o-"
            values = [[row[key] for row in rows] for key in (x[0], y[0])]
            axes.plot(*values, style, color=color, markerfacecolor=color if is_measured else "white", label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, map(str, ticks))
        axes.minorticks_off()
        axes.set_xlabel(x[1])
        axes.set_ylabel(y[1])

    return draw


def legend_above(axes: Axes, *, columns: int = 2) -> None:
    """A legend in the upper part of a panel, with room for it above what is drawn."""
    axes.set_ylim(top=_HEADROOM * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncols=columns, fontsize=7.5, frameon=False)
