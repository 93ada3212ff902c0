"""Colours, header, tick labels and saving of all files that matplotlib draws."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Color, Shade
from harness.figures.labels import number
from harness.results.stored.files import write_whole

# Okabe and Ito's palette, which any colour vision can tell apart; its yellow is left out, as too light for lines
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4B8A", "#333333")
INK, GREY, LIGHT = "#222222", "#6F6F6F", "#BDBDBD"
_LONG_NUMBER = 100_000  # from which on few numbers stand beside each other
_ROLES = {"ink": INK, "grey": GREY, "line": LIGHT, "bad": "#B00020"}

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
    """Write the figure in the format of the path's suffix, whole or not at all; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        place_axes(figure)
        write_whole(path, figure.savefig)
    return path


def place_axes(figure: Figure) -> None:
    """Give the axes their final places, for which matplotlib would draw the figure once more."""
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


def styled() -> AbstractContextManager[None]:
    """Within it figures are drawn as here, whatever their texts hold."""
    return matplotlib.rc_context(_STYLE)


def write_figures(figures: Mapping[str, Figure | None], folder: Path, plot: PlotConfig) -> list[Path]:
    """Write the figures for which there was data in every format of `plot`; keys are file names without a suffix."""
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    return [save(figure, folder / f"{name}.{kind}") for name, figure in drawn.items() for kind in plot.file_formats]


def log_axis(axes: Axes, which: str, low: float, high: float, num_ticks: int = 7) -> None:
    """A logarithmic axis with plain numbers, and enough of them also where it spans less than three decades."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    decades = math.log10(high / low)
    subs: Sequence[float] = (1.0, 3.0) if decades < 3 and num_ticks > 4 else (1.0,)
    # A few ticks at equal distances where the range has no two of these numbers: LogLocator would take up to nine.
    has_two = decades >= 1.0 or sum(low <= sub * 10**power <= high for sub in subs for power in _powers(low, high)) > 1
    if which == "x" and high >= _LONG_NUMBER:
        num_ticks = min(num_ticks, 4)
    axis.set_major_locator(LogLocator(subs=subs, numticks=num_ticks) if has_two else MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    plain_numbers(axes, which)


def _powers(low: float, high: float) -> range:
    return range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)


def plain_numbers(axes: Axes, which: str) -> None:
    """Ticks such as 0.05, 250 and 12,000: no powers and no offsets."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def color_of(color: Color) -> Any:
    if isinstance(color, Shade):
        return matplotlib.colormaps["viridis"](0.85 * color.place)
    return COLORS[color] if isinstance(color, int) else _ROLES[color]
