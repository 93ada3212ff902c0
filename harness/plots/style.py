"""Colours, header, tick labels and saving of all figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
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

from harness.results.files import write_whole

# Okabe and Ito's palette, which any colour vision can tell apart; its yellow is left out, as too light for lines
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B4B8A", "#333333")
INK, GREY, LIGHT = "#222222", "#6F6F6F", "#BDBDBD"
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
    "lines.linewidth": 1.5,
}
_DPI = 150
_LINE_IN = 0.19


def panels(
    title: str, subtitle: str, rows: int, columns: int, size_in: tuple[float, float], **options: Any
) -> tuple[Figure, npt.NDArray[Any]]:
    """A figure with a header above a grid of axes: (figure, object[rows, columns] of Axes).

    size_in: width and height of the grid; the header comes on top. options: those of `Figure.subplots`.
    """
    width, height = size_in
    lines = textwrap.wrap(subtitle, int(width * 15.5))
    header = 0.36 + _LINE_IN * len(lines)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height + header), dpi=_DPI, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, height / (height + header)), w_pad=0.08, h_pad=0.06)  # type: ignore[call-arg]
    top = height + header
    figure.text(0.1 / width, 1 - 0.1 / top, title, size=11.5, weight="bold", color=INK, va="top")
    text = "\n".join(lines)
    figure.text(0.1 / width, 1 - 0.34 / top, text, size=8.5, color=GREY, va="top", linespacing=1.3)
    return figure, axes


def head(axes: Axes, title: str, facts: str = "") -> None:
    """Title of one panel, with a line of numbers under it in grey."""
    axes.set_title(title, loc="left", size=9, color=INK, pad=17 if facts else 5)
    axes.annotate(facts, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", color=GREY, size=8)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure, whole or not at all; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        write_whole(path, figure.savefig)
    return path


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


def comparison_subtitle(runs: pd.DataFrame, *notes: str) -> str:
    """Model, device and trace of the runs, their number, and the markers of simulated and measured runs."""
    alive = runs[runs["status"] != "failed"]
    simulated = alive["simulated"].astype(bool)
    kinds = (
        "○ ┄ SIMULATED, ■ — MEASURED"
        if simulated.nunique() > 1
        else "all SIMULATED"
        if simulated.all()
        else "all MEASURED"
    )
    parts = [f"{len(alive)} run{'s' if len(alive) != 1 else ''}, {kinds}"]
    for key in ("model", "quantization", "device", "trace", "arrival", "policy"):
        values = alive[key].dropna().unique() if key in alive else np.array([])
        if len(values) == 1 and values[0] != "none":
            parts.append(f"{key} {values[0]}")
    for status, word in (("failed", "failed, not drawn"), ("interrupted", "interrupted before the end")):
        count = int((runs["status"] == status).sum())
        if count:
            parts.append(f"{count} {word}")
    return " · ".join([*parts, *notes])


def marker(simulated: bool, color: Any) -> dict[str, Any]:
    """Hollow circles are simulated and filled squares are measured, on every figure."""
    face = "white" if simulated else color
    return {"marker": "o" if simulated else "s", "markerfacecolor": face, "markeredgecolor": color, "color": color}


def spread_is_wide(values: npt.NDArray[Any]) -> bool:
    """Whether a logarithmic axis serves better: all values above zero and more than `LOG_SPREAD` times apart."""
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and finite.min() > 0 and finite.max() > LOG_SPREAD * finite.min()


def legend(figure: Figure, handles: Sequence[Line2D], title: str) -> None:
    """Beside the grid of axes; a long title is broken between its words."""
    place = figure.legend(handles=handles, title=wrapped(title), loc="outside right center", fontsize=8)
    place.set_frame_on(False)
    place.get_title().set_fontsize(8)
    place.get_title().set_color(GREY)


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


def number(value: float) -> str:
    """Three significant digits below a thousand, whole numbers with separators above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration_label(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(seconds * 1e3)} ms"
