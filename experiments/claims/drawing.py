"""What several figures of claims share."""

from __future__ import annotations

from matplotlib.axes import Axes

_HEADROOM = 1.35


def legend_above(axes: Axes, *, columns: int = 2) -> None:
    """A legend in the upper part of a panel, with room for it above what is drawn."""
    axes.set_ylim(top=_HEADROOM * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncols=columns, fontsize=7.5, frameon=False)
