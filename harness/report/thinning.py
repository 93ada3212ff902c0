"""Fewer points for figures of large runs, so that a page stays small."""

from __future__ import annotations

import numpy as np

from harness.results.tables import Floats, Gaps, Ints

MOST_POINTS = 3000
_MOST_BINS = 300
_EXTREMES = 400  # of the points that are kept, those with the largest values
# more of them in the tail
SHARES = np.concatenate((np.linspace(0, 0.98, 197)[:-1], np.linspace(0.98, 1, 81)))


def thinned(values: Floats, most: int = MOST_POINTS) -> Ints:
    """int64[<= most]: rows to draw, in order: every k-th one, and the `_EXTREMES` largest values, the tail."""
    if len(values) <= most:
        return np.arange(len(values))
    evenly = np.linspace(0, len(values) - 1, most - _EXTREMES).astype(np.int64)
    largest = np.argpartition(values, -_EXTREMES)[-_EXTREMES:]
    return np.unique(np.concatenate((evenly, largest)))


def tail_shares(count: int) -> Floats:
    """float64: shares of requests that are slower, from all to one in `count`, evenly on a logarithmic axis."""
    return np.geomspace(1, 1 / count, 160) if count > 1 else np.ones(1)


def quantiles(values: Gaps, shares: Floats) -> Floats:
    """float64[len(shares)] in ms: the values below which these shares are."""
    return np.asarray(values.percentiles((100 * shares).tolist())) * 1e3


def bin_edges(end_s: float, num_steps: int) -> Floats:
    """Times in s that divide a run from 0 to `end_s` into equal bins."""
    return np.linspace(0.0, end_s, min(_MOST_BINS, num_steps) + 1)
