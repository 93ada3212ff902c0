"""A chart as plain data: `drawing` draws it into a file with matplotlib, `browser` writes it into a page for Bokeh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

Values = Sequence[Any] | npt.NDArray[Any]
Kind = Literal["line", "steps", "points", "bars", "band"]
Side = Literal["x", "y"]
NUM_COLORS = 8
FAR_APART = 20
_PAD = 0.05


@dataclass(frozen=True)
class Shade:
    """A colour of a scale that rises from 0 to 1."""

    place: float


Color = int | Literal["ink", "grey", "line", "bad"] | Shade
"""A number in the palette of `NUM_COLORS`, a role (`line` is the light grey of axes), or a shade."""


@dataclass(frozen=True)
class Axis:
    """One axis of a panel.

    Attributes:
        label: quantity and unit.
        log: logarithmic; values must be above 0.
        percent: values are shares, written in percent.
        start, end: the range; None fits it to the values.
        names: labels of the places 0, 1, ... of an axis of categories, which run from the top where it is y.
        ticks: all places of labels in a file; None finds at most `num_ticks`. On a page they follow the zoom.
    """

    label: str = ""
    log: bool = False
    percent: bool = False
    start: float | None = None
    end: float | None = None
    names: tuple[str, ...] | None = None
    ticks: tuple[float, ...] | None = None
    num_ticks: int = 5


@dataclass(frozen=True)
class Series:
    """Values with one name and look. Series of one name share an entry of the legend; without a name they have none.

    Attributes:
        kind: `line`; `steps` of len(x) - 1 values y between the edges x; `points`; `bars` from 0 to x at the places y;
            `band` between low and high.
        low, high: bounds of y, or of x where y has names. Of `steps` low is where the filling starts.
        marker: of points and lines, in the letters of matplotlib: o, s, ^, D, x, or a dot. hollow: drawn as rings.
        width: of the line, in points.
        labels: a text beside each point; in a file only.
        texts: more lines of the box beside the pointer, by title; one text per value. On a page only.
    """

    name: str
    kind: Kind
    x: Values
    y: Values
    color: Color = 0
    dashed: bool = False
    filled: bool = False
    width: float = 1.5
    low: Values | None = None
    high: Values | None = None
    marker: str = ""
    hollow: bool = False
    labels: Sequence[str] = ()
    texts: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """A dashed line across a panel at a value of one axis, such as an SLO; files have its name if `written`."""

    name: str
    axis: Side
    value: float
    color: Color = "bad"
    written: bool = False


@dataclass(frozen=True)
class Name:
    """A text for the point x, y."""

    x: float
    y: float
    text: str
    color: Color


@dataclass(frozen=True)
class Panel:
    """What is drawn on one pair of axes.

    Attributes:
        facts: lines of numbers under the title, or below the figure on a page.
        shaded: spans of x under a grey veil.
        ends: whether a file names each series at its end instead of in a legend.
        names: texts that a file writes where there is room, each with the points that it can stand at, best first.
        wide: as wide as the page.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    facts: str = ""
    shaded: Sequence[tuple[float, float]] = ()
    ends: bool = False
    names: Sequence[Sequence[Name]] = ()
    height_in: float = 2.1
    wide: bool = False


@dataclass(frozen=True)
class Chart:
    """Panels under one title.

    Attributes:
        columns, narrow_columns: panels in a row of a file as wide as a page, and as a column of a paper.
        by_column: as wide as a page the panels fill one column after the other; those of a column have the same x.
        over_time: all panels have the same x; on a page they are zoomed together.
        legend: title of the legend of a file; None for no legend.
    """

    title: str
    subtitle: str
    panels: Sequence[Panel]
    columns: int = 2
    narrow_columns: int = 1
    by_column: bool = False
    over_time: bool = False
    legend: str | None = None


def is_known(value: Any) -> TypeGuard[float]:
    """Whether `value` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def are_far_apart(values: Values, times: float = FAR_APART) -> bool:
    """Whether a logarithmic axis serves better: all values above zero, the largest more than `times` the smallest."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return bool(len(known)) and bool(known.min() > 0 and known.max() > times * known.min())


def span(panel: Panel, which: Side) -> tuple[float, float]:
    """The range of an axis: what is given, otherwise the values and marks with some room around them."""
    axis = panel.x if which == "x" else panel.y
    if axis.names is not None and axis.start is None:
        return (-0.4, len(axis.names) - 0.6) if which == "x" else (len(axis.names) - 0.4, -0.6)
    known = [value for value in _values(panel, which) if math.isfinite(value) and (not axis.log or value > 0)]
    given = [value for value in (axis.start, axis.end) if value is not None]
    low = axis.start if axis.start is not None else min([*known, *given], default=1.0 if axis.log else 0.0)
    high = axis.end if axis.end is not None else max([*known, *given], default=10.0 if axis.log else 1.0)
    start, end = (math.log10(low), math.log10(high)) if axis.log else (low, high)
    pad = _PAD * (end - start) or (0.15 if axis.log else 0.1 * abs(end) or 1.0)
    low = low if axis.start is not None else 10 ** (start - pad) if axis.log else start - pad
    return low, high if axis.end is not None else 10 ** (end + pad) if axis.log else end + pad


def _values(panel: Panel, which: Side) -> Iterator[float]:
    bounded = "y" if panel.y.names is None else "x"
    for series in panel.series:
        names = [] if series.kind == "band" and which == bounded else [which]
        for name in [*names, *(("low", "high") if which == bounded else ())]:
            values = getattr(series, name)
            yield from () if values is None else (math.nan if value is None else float(value) for value in values)
        if which == bounded and (series.kind == "bars" or series.filled):
            yield 0.0
    yield from (mark.value for mark in panel.marks if mark.axis == which)
