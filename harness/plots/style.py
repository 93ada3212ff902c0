"""Colours, header, tick labels and saving of all figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from harness.config.plotting import PlotConfig
from harness.plots.labels import number
from harness.results.files import write_whole

# Okabe and Ito's palette, which any colour vision can tell apart; its yellow is left out, as too light for lines
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4B8A", "#333333")
INK, GREY, LIGHT, SLO = "#222222", "#6F6F6F", "#BDBDBD", "#B00020"
_LOAD_NAMES = ("rate", "concurrency", "time scale")
LOG_SPREAD = 20

_STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.labelcolor": GREY,
    "axes.edgecolor": LIGHT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.7,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": INK,
    "legend.frameon": False,
    "text.parse_math": False,  # a name with dollar signs is no formula
    "pdf.fonttype": 42,
    "lines.linewidth": 1.5,
}
_DPI = 200
_NARROW_IN = 4.5
_LEGEND_CHARACTERS = 52  # in a row of a column
WIDTHS_IN = {"column": 3.35, "page": 7.1}  # of a column and of a page of a paper


def panels(
    title: str, subtitle: str, rows: int, columns: int, size_in: tuple[float, float], **options: Any
) -> tuple[Figure, npt.NDArray[Any]]:
    """A figure with a header above a grid of axes: (figure, object[rows, columns] of Axes).

    size_in: width and height of the grid; the header comes on top. options: those of `Figure.subplots`.
    """
    width, height = size_in
    narrow = width < _NARROW_IN
    titles = textwrap.wrap(title, int(width * (11.5 if narrow else 10)))
    lines = _wrap_parts(subtitle, int(width * (17.5 if narrow else 14.5)))
    title_in, line_in = (0.17, 0.145) if narrow else (0.21, 0.165)
    header = 0.12 + title_in * len(titles) + line_in * len(lines)
    with matplotlib.rc_context(_STYLE | ({"font.size": 7.5} if narrow else {})):
        figure = Figure(figsize=(width, height + header), dpi=_DPI, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, height / (height + header)), w_pad=0.06, h_pad=0.06)  # type: ignore[call-arg]
    top, left = height + header, 0.08 / width
    size = 9.5 if narrow else 11.5
    figure.text(left, 1 - 0.08 / top, "\n".join(titles), size=size, weight="bold", color=INK, va="top")
    below = 1 - (0.08 + title_in * len(titles)) / top
    size = 7 if narrow else 8.5
    figure.text(left, below, "\n".join(lines), size=size, color=GREY, va="top", linespacing=1.25)
    return figure, axes


def _wrap_parts(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken between the parts of the text where they fit."""
    lines = [""]
    for part in text.split(" · "):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " ·"
            lines.append("")
        *full, last = textwrap.wrap(f"{lines[-1]} · {part}" if lines[-1] else part, width) or [""]
        lines[-1:] = [*full, last]
    return lines


def fitting(
    title: str, subtitle: str, count: int, plot: PlotConfig, panel_in: float, per_row: int = 2, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure as wide as `plot.width` with `count` panels of height `panel_in`: one in a row of a column, at most
    `per_row` in a row of a page. options: those of `Figure.subplots`."""
    columns = 1 if plot.width == "column" else min(per_row, count)
    rows = -(-count // columns)
    figure, grid = panels(title, subtitle, rows, columns, (WIDTHS_IN[plot.width], panel_in * rows), **options)
    for spare in grid.flat[count:]:
        spare.set_visible(False)
    return figure, list(grid.flat[:count])


def head(axes: Axes, title: str, facts: str = "") -> None:
    """Title of one panel, with a line of numbers under it in grey."""
    num_lines = facts.count("\n") + 1 if facts else 0
    axes.set_title(title, loc="left", size=9, color=INK, pad=5 + 10 * num_lines + (2 if facts else 0))
    options: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
    axes.annotate(facts, (0, 1), (0, 5), color=GREY, size=7.5, linespacing=1.1, va="bottom", **options)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the path's suffix, whole or not at all; returns the path.

    The axes are placed once for all formats, before the figure is drawn: matplotlib would draw it twice for that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            figure.set_layout_engine(None)
        write_whole(path, figure.savefig)
    return path


def styled() -> AbstractContextManager[None]:
    """Within it figures are drawn as here, whatever their texts hold."""
    return matplotlib.rc_context(_STYLE)


def write_figures(figures: Mapping[str, Figure | None], folder: Path, plot: PlotConfig) -> list[Path]:
    """Write the figures for which there was data in every format of `plot`; keys are file names without a suffix."""
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    return [save(figure, folder / f"{name}.{kind}") for name, figure in drawn.items() for kind in plot.formats]


def run_subtitle(summary: Mapping[str, Any]) -> str:
    """What was run, beginning with whether it was simulated or measured."""
    parts = [
        kind(summary),
        f"{known(summary, 'model')} on {known(summary, 'device')}",
        f"trace {known(summary, 'trace')}, arrivals {known(summary, 'arrival')}",
        f"policy {known(summary, 'policy')}",
        f"{summary['num_blocks']:,} blocks of {summary['block_size']} tokens",
    ]
    if not summary["complete"]:
        parts.append("INTERRUPTED")
    if summary["num_excluded"]:
        parts.append(f"{summary['num_excluded']:,} requests outside the warm-up/drain window")
    return " · ".join(parts)


def kind(summary: Mapping[str, Any]) -> str:
    return "SIMULATED" if summary.get("simulated") else f"MEASURED ({summary.get('engine') or 'unknown engine'})"


def known(summary: Mapping[str, Any], key: str) -> str:
    value = summary.get(key)
    return f"unknown {key}" if value is None or value != value else str(value)


def comparison_subtitle(table: pd.DataFrame, plot: PlotConfig, *notes: str) -> str:
    """What the configurations share, how many runs they are of, and the markers of simulated and measured runs."""
    simulated, fixed = table["simulated"].astype(bool), table.attrs["fixed"]
    both = "○ ┄ SIMULATED, ■ — MEASURED"
    kinds = both if simulated.nunique() > 1 else "all SIMULATED" if simulated.all() else "all MEASURED"
    count = int(table["num_runs"].sum())
    parts = [f"{count} run{'s' if count != 1 else ''}, {kinds}"]
    model, device = (
        (plot.name(fixed[key]) for key in ("model", "device")) if {"model", "device"} <= fixed.keys() else ("", "")
    )
    parts += [f"{model.rpartition('/')[2]} on {device}"] if model else []
    shown = ("model", "weights", "device", "trace", "arrival", *_LOAD_NAMES, "seed")
    parts += [
        f"{key} {value}" for key, value in fixed.items() if key in shown and not (model and key in ("model", "device"))
    ]
    if table["num_runs"].max() > 1:
        parts.append(f"means of {table['num_runs'].max()} seeds")
    if "verdict" in table and (table["verdict"] == "overloaded").any():
        parts.append("×: overloaded")
    for status, word in (("failed", "failed, not drawn"), ("interrupted", "interrupted before the end")):
        number_of = table.attrs[f"num_{status}"]
        parts += [f"{number_of} {word}"] if number_of else []
    return " · ".join([*parts, *notes])


def slo_line(axes: Axes, which: str, limit: float | None, unit: str = "") -> None:
    """A dashed line at an SLO, with its value where a unit is given."""
    if limit is None:
        return
    (axes.axvline if which == "x" else axes.axhline)(
        limit, color=SLO, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1, label="SLO"
    )
    if not unit:
        return
    text, at = f"SLO {number(limit)} {unit}", (limit, 1.0) if which == "x" else (0.0, limit)
    coordinates = ("data", "axes fraction") if which == "x" else ("axes fraction", "data")
    axes.annotate(
        text, at, (2, -2 if which == "x" else 2), xycoords=coordinates, textcoords="offset points", color=SLO, size=6.5,
        va="top" if which == "x" else "bottom", rotation=270 if which == "x" else 0,
    )  # fmt: skip


def marker(simulated: bool, color: Any) -> dict[str, Any]:
    """Hollow circles are simulated and filled squares are measured, on every figure."""
    face = "white" if simulated else color
    return {"marker": "o" if simulated else "s", "markerfacecolor": face, "markeredgecolor": color, "color": color}


def spread_is_wide(values: npt.NDArray[Any]) -> bool:
    """Whether a logarithmic axis serves better: all values above zero and more than `LOG_SPREAD` times apart."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and finite.min() > 0 and finite.max() > LOG_SPREAD * finite.min()


def legend(figure: Figure, handles: Sequence[Line2D], title: str, plot: PlotConfig) -> None:
    """Right of the panels on a page, below them in a column; a long title is broken between its words."""
    below = plot.width == "column"
    columns = _legend_columns([str(handle.get_label()) for handle in handles]) if below else 1
    place = figure.legend(
        handles=handles, title=wrapped(title), loc="outside lower center" if below else "outside right center",
        fontsize=7, frameon=False, ncols=columns,
    )  # fmt: skip
    place.get_title().set_fontsize(7)
    place.get_title().set_color(GREY)


def color_legend(figure: Figure, colors: Mapping[str, Any], plot: PlotConfig) -> None:
    """Names in their colours: right of the panels on a page, below them in a column."""
    if len(colors) < 2:
        return
    handles = [Line2D([], [], color=color, linewidth=2, label=wrapped(name)) for name, color in colors.items()]
    below = plot.width == "column"
    figure.legend(
        handles=handles, loc="outside lower center" if below else "outside right center", fontsize=7,
        labelcolor="linecolor", handlelength=1, frameon=False, ncols=_legend_columns(list(colors)) if below else 1,
    )  # fmt: skip


def _legend_columns(names: Sequence[str]) -> int:
    """How many names fit beside one another in a column of a paper."""
    return max(1, min(3, _LEGEND_CHARACTERS // (max(map(len, names)) + 4)))


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 32))


def log_axis(axes: Axes, which: str, low: float, high: float, num_ticks: int = 7) -> None:
    """A logarithmic axis with plain numbers, and enough of them also where it spans less than three decades."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    decades = math.log10(high / low)
    subs: Sequence[float] = (1.0, 3.0) if decades < 3 and num_ticks > 4 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=num_ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    plain_numbers(axes, which)


def plain_numbers(axes: Axes, which: str) -> None:
    """Ticks such as 0.05, 250 and 12,000: no powers and no offsets."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def duration_label(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(seconds * 1e3)} ms"
