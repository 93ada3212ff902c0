"""The steps of a fleet. Those of a server follow one another; those of servers or of lanes of a pipeline overlap."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.results.columns import floats, ratio
from harness.results.tables import Floats


class Levels(NamedTuple):
    """A quantity of the whole fleet that is constant in each of consecutive spans; between them the fleet is idle.

    begins, durations: float64[n] in s, begins ascending. values: [n].
    """

    begins: Floats
    durations: Floats
    values: npt.NDArray[Any]

    @property
    def ends(self) -> Floats:
        return self.begins + self.durations

    def integral(self, at_s: npt.ArrayLike) -> Floats:
        """Over the time up to each in `at_s`, idle time counting as zero."""
        return _of_one(self.begins, self.durations, self.values * self.durations, np.asarray(at_s, dtype=np.float64))

    def mean(self, start: float, end: float) -> float:
        """Over the time between `start` and `end`, idle time counting as zero."""
        done = self.integral([start, end])
        return ratio(done[1] - done[0], end - start)

    def peak(self, start: float, end: float) -> int:
        """The highest value between `start` and `end`."""
        return int(self.values[(self.begins < end) & (self.ends > start)].max(initial=0))


def levels(steps: pd.DataFrame, values: npt.NDArray[Any]) -> Levels:
    """What servers hold or have while a step runs, such as blocks or requests that wait, in sum over all servers.

    values: [num_steps], in the order of the table. In a pipeline, the step that began last says it.
    """
    if len(_groups(steps, "server", "lane")) == 1:
        return Levels(floats(steps, "start_time"), floats(steps, "duration"), values)
    servers = [rows for _, rows in _groups(steps, "server")]
    changes = [_changes(steps.iloc[rows], values[rows]) for rows in servers]
    times, amounts = (np.concatenate(parts) for parts in zip(*changes, strict=True))
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.cumsum(amounts[order])
    is_last = np.append(np.diff(times) > 0, True)  # of several changes at a time
    times, total = times[is_last], total[is_last]
    return Levels(times[:-1], np.diff(times), total[:-1])


def overlap_free(steps: pd.DataFrame) -> list[pd.DataFrame]:
    """The steps, divided so that those of each table follow one another, in time order."""
    groups = _groups(steps, "server", "lane")
    return [steps] if len(groups) == 1 else [steps.iloc[rows] for _, rows in groups]


def step_integral(steps: pd.DataFrame, amount: npt.NDArray[Any], at_s: npt.ArrayLike) -> Floats:
    """Sum of `amount` over all steps up to each time in `at_s`, a step's amount spread evenly over its duration.

    amount: [num_steps], in the order of the table. Returns float64 of the shape of `at_s`. The difference between two
    times is the amount between them, also where they cut a step.
    """
    times = np.asarray(at_s, dtype=np.float64)
    if not len(steps):
        return np.zeros_like(times)
    begins, durations = floats(steps, "start_time"), floats(steps, "duration")
    groups = _groups(steps, "server", "lane")
    if len(groups) == 1:
        return _of_one(begins, durations, amount, times)
    parts = [_of_one(begins[rows], durations[rows], amount[rows], times) for _, rows in groups]
    return np.asarray(np.sum(parts, axis=0))


def by_server(steps: pd.DataFrame) -> list[tuple[Any, npt.NDArray[np.intp]]]:
    """The rows of each server, with its number."""
    return _groups(steps, "server")


def _groups(steps: pd.DataFrame, *columns: str) -> list[tuple[Any, npt.NDArray[np.intp]]]:
    """The rows of each server, or of each lane of each; of results without these columns, all rows."""
    varying = [name for name in columns if name in steps and len(steps) and steps[name].min() < steps[name].max()]
    if not varying:
        return [(0, np.arange(len(steps)))]
    indices: dict[Any, Any] = dict(steps.groupby(varying).indices)
    return sorted(indices.items())


def _changes(steps: pd.DataFrame, values: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[Any]]:
    """Times, ascending, and by how much the value of one server changes at each: from 0 to 0."""
    begins = floats(steps, "start_time")
    ends = np.maximum.accumulate(begins + floats(steps, "duration"))
    is_idle = np.append(ends[:-1] < begins[1:] - 1e-9, True)  # more than the rounding of times in seconds
    times = np.concatenate([begins, ends[is_idle]])
    after = np.concatenate([values, np.zeros(int(is_idle.sum()), values.dtype)])
    order = np.argsort(times, kind="stable")
    return times[order], np.diff(after[order], prepend=0)


def _of_one(start_s: Floats, duration_s: Floats, amount: npt.NDArray[Any], times: Floats) -> Floats:
    """`step_integral` for steps that do not overlap."""
    if not len(start_s):
        return np.zeros_like(times)
    total = np.concatenate(([0.0], np.cumsum(amount, dtype=np.float64)))
    # the step that starts last at or before each time; -1: none, and its share below is 0
    step = np.searchsorted(start_s, times, side="right") - 1
    into = times - start_s[step]
    share = np.divide(into, duration_s[step], out=np.ones_like(times), where=duration_s[step] > 0).clip(0.0, 1.0)
    share = np.where(step >= 0, share, 0.0)
    before = total[np.maximum(step, 0)]
    return before + share * (total[step + 1] - before)
