"""Figures of a page as data. `assets/figures.js` draws them in the browser, so that writing a page loads no plotting
library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_DIGITS = 5
Kind = Literal["line", "area", "points", "interval", "bars"]
Values = Sequence[Any] | npt.NDArray[Any]


@dataclass(frozen=True)
class Axis:
    """One axis of a figure.

    Attributes:
        label: quantity and unit.
        log: logarithmic; values must be above 0.
        format: of ticks and values, as of numeral.js: `0,0.[00]`, `0.[000]%`.
        start, end: the range; None fits it to the data and the limits.
        names: labels of the places 0, 1, ... of an axis of categories; None for an axis of numbers.
    """

    label: str
    log: bool = False
    format: str = "0,0.[00]"
    start: float | None = None
    end: float | None = None
    names: Sequence[str] | None = None


@dataclass(frozen=True)
class Series:
    """Values with one name and colour.

    Attributes:
        color: number in the palette of `assets/page.css`.
        dashed: of lines, such as measured ones beside simulated ones.
        low, high: bounds of y, or of x where y is an axis of categories.
        hollow: of points, those drawn as rings.
        texts: more lines of the box beside the pointer, by title; one text per value.
    """

    name: str
    kind: Kind
    x: Values
    y: Values
    color: int = 0
    dashed: bool = False
    low: Values | None = None
    high: Values | None = None
    hollow: Sequence[bool] | None = None
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A straight dashed line across a figure at a value of one axis, such as an SLO.

    color: a variable of `assets/page.css`, without its dashes.
    """

    name: str
    axis: Literal["x", "y"]
    value: float
    color: str = "bad"


def are_far_apart(values: Sequence[float], times: float) -> bool:
    """Whether a logarithmic axis serves better: all values above zero, the largest more than `times` the smallest."""
    return min(values) > 0 and max(values) > times * min(values)


@dataclass(frozen=True)
class Figure:
    """A figure with a title above and a sentence below. Figures of the same `group` share their range of x."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    limits: Sequence[Limit] = ()
    note: str = ""
    wide: bool = False
    height: int = 300
    group: str | None = None

    def data(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "x": _axis(self.x),
            "y": _axis(self.y),
            "series": [_series(each) for each in self.series],
            "limits": [{**vars(each), "value": _rounded(each.value)} for each in self.limits],
            "height": self.height,
            "group": self.group,
        }


def _axis(axis: Axis) -> dict[str, Any]:
    return {**vars(axis), "names": None if axis.names is None else list(axis.names)}


def _series(series: Series) -> dict[str, Any]:
    numbers = {name: getattr(series, name) for name in ("x", "y", "low", "high")}
    return {
        "name": series.name,
        "kind": series.kind,
        "color": series.color,
        "dashed": series.dashed,
        "hollow": None if series.hollow is None else list(series.hollow),
        "texts": {name: list(texts) for name, texts in series.texts.items()},
        **{name: None if values is None else [_rounded(each) for each in values] for name, values in numbers.items()},
    }


def _rounded(value: Any) -> float | int | None:
    """Five significant digits, which no screen tells from more; None for what is undefined."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, (int, np.integer)) or float(value).is_integer():
        return int(value)
    return float(f"{value:.{_DIGITS}g}")
