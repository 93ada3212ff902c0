"""The steps of a fleet. Those of a server follow one another; those of servers or of lanes of a pipeline overlap."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from harness.results.columns import floats, ratio
from harness.results.tables import Floats, Rows
from simulator.table import Table

T = TypeVar("T")


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


class Timeline:
    """When the fleet changes, for the levels of several quantities of the same steps."""

    def __init__(self, steps: Rows) -> None:
        self._begins, self._durations = floats(steps, "start_time"), floats(steps, "duration")
        self._is_alone = len(_groups(steps, "server", "lane")) == 1
        if self._is_alone:
            return
        self._servers = [_Changes.of(self._begins, self._durations, rows) for _, rows in _groups(steps, "server")]
        times = np.concatenate([server.times for server in self._servers])
        self._order = np.argsort(times, kind="stable")
        times = times[self._order]
        self._is_last = np.append(np.diff(times) > 0, True)  # of several changes at a time
        times = times[self._is_last]
        self._begins, self._durations = times[:-1], np.diff(times)

    def levels(self, values: npt.NDArray[Any]) -> Levels:
        """What servers hold or have while a step runs, such as blocks or requests that wait, in sum over all servers.

        values: [num_steps], in the order of the table. In a pipeline, the step that began last says it.
        """
        if self._is_alone:
            return Levels(self._begins, self._durations, values)
        amounts = np.concatenate([server.amounts(values) for server in self._servers])
        total = np.cumsum(amounts[self._order])[self._is_last]
        return Levels(self._begins, self._durations, total[:-1])


def timeline(steps: Rows) -> Timeline:
    """The timeline of the steps of a run, which many metrics need."""
    return _once(steps, "timeline", Timeline)


def levels(steps: Rows, values: npt.NDArray[Any]) -> Levels:
    """`Timeline.levels` of a single quantity."""
    return timeline(steps).levels(values)


def levels_of(steps: Rows, name: str) -> Levels:
    """`Timeline.levels` of a column of the steps."""

    def find(steps: Rows) -> Levels:
        return levels(steps, steps[name].to_numpy(dtype=np.int64))

    return _once(steps, ("levels", name), find)


def overlap_free(steps: Rows) -> list[npt.NDArray[np.intp]]:
    """The rows of the steps, divided so that the steps of each part follow one another, in time order."""
    return [rows for _, rows in _groups(steps, "server", "lane")]


def step_integral(steps: Rows, amount: npt.NDArray[Any], at_s: npt.ArrayLike) -> Floats:
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


def _once(steps: Rows, name: Hashable, find: Callable[[Rows], T]) -> T:
    """`Table.once`, where the steps are one of our tables and not a DataFrame, which may change."""
    found: T = steps.once(name, find) if isinstance(steps, Table) else find(steps)
    return found


def by_server(steps: Rows) -> list[tuple[Any, npt.NDArray[np.intp]]]:
    """The rows of each server, with its number."""
    return _groups(steps, "server")


def _groups(steps: Rows, *columns: str) -> list[tuple[Any, npt.NDArray[np.intp]]]:
    """The rows of each server, or of each lane of each; of results without these columns, all rows."""

    def find(steps: Rows) -> list[tuple[Any, npt.NDArray[np.intp]]]:
        varying = [name for name in columns if name in steps and len(steps) and steps[name].min() < steps[name].max()]
        if not varying:
            return [(0, np.arange(len(steps)))]
        values = np.stack([steps[name].to_numpy() for name in varying])
        order = _order(values)
        begins = np.flatnonzero(np.diff(values[:, order], axis=1).any(axis=0)) + 1
        groups = np.split(order, begins)
        keys = [tuple(values[:, rows[0]].tolist()) for rows in groups]
        return [(key if len(varying) > 1 else key[0], rows) for key, rows in zip(keys, groups, strict=True)]

    return _once(steps, ("groups", columns), find)


def _order(values: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """What sorts rows by the first number of each, then the second; numpy sorts short integers in a few passes."""
    lowest, highest = values.min(axis=1), values.max(axis=1)
    widths = highest - lowest + 1
    if np.prod(widths.astype(np.float64)) > np.iinfo(np.uint16).max:
        return np.lexsort(values[::-1])
    codes = np.ravel_multi_index(tuple(values - lowest[:, None]), tuple(widths.tolist()))
    return np.argsort(codes.astype(np.uint16), kind="stable")


class _Changes(NamedTuple):
    """Times, ascending, at which a server begins one of its steps, `rows`, or comes to be idle; `order` sorts them."""

    times: Floats
    rows: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]

    @classmethod
    def of(cls, begins: Floats, durations: Floats, rows: npt.NDArray[np.intp]) -> _Changes:
        begins = begins[rows]
        ends = np.maximum.accumulate(begins + durations[rows])
        is_idle = np.append(ends[:-1] < begins[1:] - 1e-9, True)  # more than the rounding of times in seconds
        times = np.concatenate([begins, ends[is_idle]])
        order = np.argsort(times, kind="stable")
        return cls(times[order], rows, order)

    def amounts(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """By how much the value of the server changes at each time: from 0 to 0."""
        num_idle = len(self.order) - len(self.rows)
        after = np.concatenate([values[self.rows], np.zeros(num_idle, values.dtype)])
        return np.diff(after[self.order], prepend=0)


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
