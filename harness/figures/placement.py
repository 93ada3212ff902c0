"""Names written beside what they name: at the ends of curves, and at points, without running into each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from harness.figures.chart import Name
from harness.figures.style import color_of
from harness.results.tables import Floats

_WRAP = 20  # characters in a line of a name
_LINE_PT = 1.2  # height of a line, as a multiple of the font size
_AROUND = [
    (6, -3, "left"), (6, 4, "left"), (-6, 4, "right"), (-6, -3, "right"), (-6, -9, "right"), (6, -9, "left"),
    (0, 8, "center"), (0, -13, "center"),
]  # fmt: skip
_FARTHER = [(x * 2.5, y * 2.5, side) for x, y, side in _AROUND]


def wrapped_label(text: str) -> str:
    """Lines of at most about `_WRAP` characters, broken at the separators of a label."""
    return "\n".join(textwrap.wrap(text, _WRAP, break_long_words=False, break_on_hyphens=False))


def name_ends(axes: Axes, names: Sequence[Name], size: float) -> None:
    """Write names to the right of the axes, each at the height of its curve's end or as near as others let it.

    The limits of the axes must be set.
    """
    shown = sorted(
        (name for name in names if np.isfinite([name.x, name.y]).all()), key=lambda name: _height(axes, name)
    )
    if not shown:
        return
    texts = [wrapped_label(name.text) for name in shown]
    total_pt = axes.get_window_extent().height / axes.figure.dpi * 72
    heights = np.array([(text.count("\n") + 1) * size * _LINE_PT / total_pt for text in texts])
    wanted = np.array([_height(axes, name) for name in shown])
    for name, text, at in zip(shown, texts, _spread(wanted, heights), strict=True):
        line: dict[str, Any] = {
            "arrowstyle": "-",
            "color": color_of(name.color),
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 2,
            "alpha": 0.6,
        }
        line["relpos"] = (0, 0.5)
        axes.annotate(
            text, (name.x, name.y), (1.06, at), textcoords="axes fraction", color=color_of(name.color), size=size,
            va="center", linespacing=1.0, arrowprops=line, annotation_clip=False,
        )  # fmt: skip


def _height(axes: Axes, name: Name) -> float:
    """Where a point is in the axes, as a share of their height."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((name.x, name.y)))[1])


def _spread(wanted: Floats, heights: Floats) -> Floats:
    """Centres in the order of `wanted`, each as far from the next as their heights ask, near to what is wanted."""
    gaps = (heights[1:] + heights[:-1]) / 2
    offsets = np.concatenate(([0.0], np.cumsum(gaps)))
    free = wanted - offsets  # must not decrease: the nearest such sequence is a pooling of means
    blocks: list[list[float]] = []
    for value in free:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    centres = np.concatenate([[float(np.mean(block))] * len(block) for block in blocks]) + offsets
    return np.asarray(centres - max(0.0, centres[-1] + heights[-1] / 2 - 1.08))


def name_points(
    axes: Axes, names: Sequence[Sequence[Name]], curves: Sequence[npt.NDArray[Any]], size: float
) -> list[str]:
    """Write names beside points, the first ones first, where they cover no other name and nothing of the curves.

    names: for each name the points that it can stand at, best first. curves: arrays [n, 2] in data coordinates; a
    single point is a curve of one. The limits of the axes must be set. Returns the names that found no room.
    """
    renderer = FigureCanvasAgg(axes.get_figure(root=True)).get_renderer()
    frame = axes.get_window_extent(renderer).padded(4)
    taken = [box for curve in curves for box in _boxes(axes.transData.transform(curve))]
    taken += [text.get_window_extent(renderer) for text in axes.texts]
    left_out = []
    for choices in names:
        for name, place in ((name, place) for places in (_AROUND, _FARTHER) for name in choices for place in places):
            note = _annotate(axes, name, place, size)
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer).padded(1)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
        else:
            left_out += [name.text for name in choices[:1]]
    return left_out


def _annotate(axes: Axes, name: Name, place: tuple[float, float, str], size: float) -> Annotation:
    """The name beside its point, with a line to it where it is far."""
    dx, dy, side = place
    line = {"arrowstyle": "-", "color": color_of(name.color), "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
    return axes.annotate(
        wrapped_label(name.text), (name.x, name.y), (dx, dy), textcoords="offset points",
        color=color_of(name.color), size=size, ha=side, va="bottom", linespacing=1.0, in_layout=False,
        arrowprops=line if place in _FARTHER else None,
    )  # fmt: skip


def _boxes(curve: npt.NDArray[Any]) -> list[Bbox]:
    """Small boxes that cover a curve in display coordinates: its points, and steps of the lines between them."""
    curve = curve[np.isfinite(curve).all(axis=1)]
    boxes = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in curve]
    for start, end in pairwise(curve):
        count = int(np.abs(end - start).max() // 6)
        steps = start + (end - start) * np.linspace(0, 1, count + 2)[1:-1, None]
        boxes += [Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in steps]
    return boxes
