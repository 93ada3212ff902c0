"""The search for a capacity: short probes find the neighbourhood, long ones the value.

Long probes are as long as the precision needs: the interval narrows by the root of their requests, so that the requests
still missing after a round are shared out among the probes that are left.

Which probes are run depends on nothing but the outcomes of those before, so that a search can be repeated and gone on
with, on any number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.config.schema.tasks.capacity import CapacityConfig
from harness.studies.capacity.capacity_fit import Estimate, Point, estimate
from harness.studies.capacity.probe import Probe

_MOST_SCOUTS = 6
SCOUT_SHARE = 5  # a scout has this part of the requests of a probe
_FIRST_SHARE = 2  # and so have the first two after them, where these leave the capacity within wide bounds
_STRIDE = 4.0  # how far scouts go up while the SLO holds, and down while it fails
# Scouts end when the lowest load that fails is this close to the highest that holds; after four of them sooner.
_BRACKET, _WIDE_BRACKET, _MANY_SCOUTS = 1.12, 1.4, 4
_CLEARLY = 3.0  # of the room: a short run with fewer requests beyond the limit may do so by chance
_BELOW_FULL = 0.92  # of the load at which the system is full: a first guess at its capacity
_ENOUGH = 4  # long probes; fewer know their own noise badly, and must agree better to end the search
# Loads of a round, as quantiles of what is known of the capacity. While its interval is wide they are far apart, and
# probes not yet longer: a scout that failed by chance leaves a long tail above, into which quantiles near 0.5 creep.
_ROUND, _WIDE_ROUND = (0.3, 0.7), (0.2, 0.9)
_WIDE = 0.06
LONGEST = 6.0  # times `capacity.num_requests`: the longest probe
_MARGIN = 2.5  # times the requests that the precision seems to need: they tell that badly


class Ask(NamedTuple):
    """A probe to run: its load, its number in the search, from which its seed follows, and its number of requests."""

    load: float
    number: int
    num_requests: int


Run = Callable[[Sequence[Ask]], list[Probe]]


@dataclass(frozen=True)
class Capacity:
    """What a search found. `estimate` is None where the SLO held, or failed, at every load tried."""

    probes: tuple[Probe, ...]
    estimate: Estimate | None


class Interrupted(KeyboardInterrupt):
    """A search that was interrupted, with the answer so far."""

    def __init__(self, so_far: Capacity) -> None:
        super().__init__()
        self.so_far = so_far


def find_capacity(run: Run, start: float, settings: CapacityConfig, room: float) -> Capacity:
    """Search from the load `start`; `run` runs probes and returns them in the order of the asks.

    `room` is the share of requests that may be beyond a limit.
    """
    probes = _scout(run, start, settings, room)
    if not all(_sides(probes, room)):
        return so_far(probes, room)
    num_scouts, found = len(probes), estimate(points_of(probes), room)
    num_requests = settings.num_requests if found.precision <= _WIDE else max(1, settings.num_requests // _FIRST_SHARE)
    while len(probes) < settings.max_probes:
        loads = _round(found, probes, room)[: settings.max_probes - len(probes)]
        probes += run([Ask(load, len(probes) + i, num_requests) for i, load in enumerate(loads)])
        found = estimate(points_of(probes), room)
        if found.precision <= settings.precision * min(1.0, (len(probes) - num_scouts) / _ENOUGH):
            break
        num_left = settings.max_probes - len(probes)
        num_requests = _length(probes[num_scouts:], num_left, found.precision, settings)
    return Capacity(tuple(probes), found)


def so_far(probes: Sequence[Probe], room: float) -> Capacity:
    """What these probes tell."""
    return Capacity(tuple(probes), estimate(points_of(probes), room) if all(_sides(probes, room)) else None)


def requests_left(probes: Sequence[Probe], settings: CapacityConfig, room: float) -> int:
    """About how many requests the rest of the search will take, as far as its probes tell that."""
    long = [probe.num_requests for probe in probes if probe.num_requests >= settings.num_requests // _FIRST_SHARE]
    few = max(0, _ENOUGH - len(long)) * settings.num_requests
    if not long:
        return max(0, _MANY_SCOUTS - len(probes)) * (settings.num_requests // SCOUT_SHARE) + few
    precision = estimate(points_of(probes), room).precision
    missing = sum(long) * ((precision / settings.precision) ** 2 - 1)
    most = (settings.max_probes - len(probes)) * LONGEST * settings.num_requests
    return round(min(max(few, missing), most))


def _round(found: Estimate, probes: Sequence[Probe], room: float) -> list[float]:
    """Two loads for long probes.

    While the interval is wide no load lies beyond the lowest that clearly failed: if it failed by chance, a long probe
    there says so, and otherwise those beyond it would say nothing.
    """
    if found.precision <= _WIDE:
        return [found.quantile(each) for each in _ROUND]
    holding, failing = _sides(probes, room)
    low, high = (found.quantile(each) for each in _WIDE_ROUND)
    return [low, min([high, *(load for load in failing if load > max(holding))])]


def _sides(probes: Sequence[Probe], room: float) -> tuple[list[float], list[float]]:
    """The loads that hold and those that clearly fail."""
    sides: tuple[list[float], list[float]] = [], []
    for probe in probes:
        sides[not probe.holds(_CLEARLY * room)].append(probe.load)
    return sides


def _length(done: Sequence[Probe], num_left: int, precision: float, settings: CapacityConfig) -> int:
    """Requests of the next probe, after long probes that are `done` and gave `precision`."""
    if precision > max(_WIDE, settings.precision):
        return settings.num_requests
    missing = sum(probe.num_requests for probe in done) * ((precision / settings.precision) ** 2 - 1)
    needed = _MARGIN * missing / max(1, num_left)
    return round(min(max(needed, settings.num_requests), LONGEST * settings.num_requests))


def points_of(probes: Sequence[Probe]) -> list[Point]:
    return [Point(probe.load, probe.share, probe.num_requests, probe.overloaded, probe.guess) for probe in probes]


def _scout(run: Run, start: float, settings: CapacityConfig, room: float) -> list[Probe]:
    """Short probes, one after the other, until one load holds and a higher one fails."""
    num_requests = max(1, settings.num_requests // SCOUT_SHARE)
    probes: list[Probe] = []
    load = start
    while len(probes) < min(_MOST_SCOUTS, settings.max_probes - 2):
        probes += run([Ask(load, len(probes), num_requests)])
        holding, failing = _sides(probes, room)
        if holding and failing:
            highest, lowest = max(holding), min(failing)
            if lowest < highest * (_WIDE_BRACKET if len(probes) >= _MANY_SCOUTS else _BRACKET):
                break
        load = _next_scout(probes, holding, failing)
    return probes


def _next_scout(probes: Sequence[Probe], holding: Sequence[float], failing: Sequence[float]) -> float:
    """Near the load at which the system is full, while it is not known on which side the SLO breaks; then between."""
    full = probes[-1].guess * _BELOW_FULL
    if not failing:
        return min(max(full, max(holding) * _BRACKET), max(holding) * _STRIDE) if full else max(holding) * _STRIDE
    if not holding:
        return full if 0 < full < min(failing) / _BRACKET else min(failing) / _STRIDE
    return (max(holding) * min(failing)) ** 0.5
