"""The samples of a session: times by point and operator, kept in a file so that a session can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ATTENTION = "attention"
ADDED_BY_ATTENTION = "added_by_attention"  # what decode attention adds to all other operators of a step
ALL_OPERATORS = "all_operators"  # all calls of a step, added up
DISTURBED = "disturbed"  # whole steps during which another process ran, if the visit had undisturbed steps too

Times = Mapping[str, list[float]]
"""Times in microseconds of one call, by operator."""

Clock = Callable[[], int]
"""The time in ns since an arbitrary moment."""


class Point(NamedTuple):
    """A point of the grid of a family of measurements: the sizes at which to measure."""

    family: str
    sizes: tuple[int, ...]


class Samples:
    """Times of all points.

    Attributes:
        signature: what was measured, and with which settings.
        spent_s: seconds spent measuring, those of earlier sessions included.
    """

    def __init__(self, signature: Mapping[str, Any]) -> None:
        self.signature = dict(signature)
        self.spent_s = 0.0
        self._times: dict[Point, dict[str, list[float]]] = {}
        self._visits: dict[Point, int] = {}
        self._seconds: dict[Point, float] = {}

    def add(self, point: Point, times: Times, seconds: float) -> None:
        """Add the `times` of a visit to `point`, which took `seconds`."""
        there = self._times.setdefault(point, {})
        for operator, values in times.items():
            there.setdefault(operator, []).extend(values)
        self._visits[point] = self.visits(point) + 1
        self._seconds[point] = self._seconds.get(point, 0.0) + seconds
        self.spent_s += seconds

    def points(self, family: str) -> list[Point]:
        """Points of a family, sorted by their sizes."""
        return sorted(point for point in self._times if point.family == family)

    def visits(self, point: Point) -> int:
        return self._visits.get(point, 0)

    def seconds_per_visit(self, point: Point) -> float | None:
        """Mean duration of the visits to `point`; None where it was never visited."""
        visits = self.visits(point)
        return self._seconds[point] / visits if visits else None

    def operators(self, point: Point) -> list[str]:
        return [operator for operator in self._times[point] if operator != DISTURBED]

    def times(self, point: Point, operator: str) -> list[float]:
        """All times in microseconds, in the order in which they were measured."""
        return self._times[point].get(operator, [])

    def median(self, point: Point, operator: str) -> float:
        return float(np.median(self._times[point][operator]))

    def spread(self, point: Point, operator: str) -> float:
        """Half the interquartile range of an operator's times."""
        return spread_of(self._times[point][operator])

    def save(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        points = [
            {
                "family": point.family,
                "sizes": point.sizes,
                "visits": self._visits[point],
                "seconds": round(self._seconds[point], 6),
                "times": {operator: [round(value, 4) for value in values] for operator, values in times.items()},
            }
            for point, times in self._times.items()
        ]
        text = json.dumps({"signature": self.signature, "points": points})
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path, signature: Mapping[str, Any], tell: Callable[[str], None]) -> Samples:
        """The samples that an earlier session left at `path`; empty if it left none, or has another signature.

        Args:
            tell: gets a line with the reason if the samples at `path` cannot be used.
        """
        samples = cls(signature)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return samples
        except (OSError, ValueError) as error:
            tell(f"starting over: {path} cannot be read: {error}")
            return samples
        differing = list(_differing(data.get("signature", {}), json.loads(json.dumps(samples.signature))))
        if differing:
            tell(f"starting over: {path} was measured with {', '.join(differing)}")
            return samples
        for entry in data["points"]:
            point = Point(entry["family"], tuple(entry["sizes"]))
            samples._times[point] = entry["times"]
            samples._visits[point] = entry["visits"]
            samples._seconds[point] = entry["seconds"]
        samples.spent_s = sum(samples._seconds.values())
        return samples


def spread_of(values: Sequence[float]) -> float:
    """Half the interquartile range."""
    low, high = np.percentile(values, (25, 75))
    return float(high - low) / 2


def _differing(before: Mapping[str, Any], now: Mapping[str, Any], of: str = "") -> Iterator[str]:
    """The entries in which two nested mappings differ, with both values; `of` precedes each name."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differing(old, new, f"{of}{name}.")
        elif old != new:
            yield f"{of}{name}={old} instead of {new}"
