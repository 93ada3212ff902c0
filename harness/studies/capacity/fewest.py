"""The fewest servers that hold the SLO at a load: the search, and what it says.

Short probes, which say how full their servers are, find the neighbourhood. In it each number of servers is decided by
one long probe. Probes run in pairs, as they do in the search for a load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import CapacityConfig
from harness.results.measures.costs import price_per_gpu_hour
from harness.results.summary import number, percent
from harness.studies.capacity.capacity_fit import Estimate, Point, estimate
from harness.studies.capacity.keys import searched_key, with_load
from harness.studies.capacity.load_search import SCOUT_SHARE, Ask, Capacity, Run
from harness.studies.capacity.probe import Probe
from harness.studies.capacity.row import (
    Row,
    cost_source,
    costs_text,
    gpus_text,
    prices,
    room_of,
    servers_text,
    slo_text,
    stored,
)

_FULL = 0.92  # of what servers can bear: more is rarely within an SLO
_WIDER = 1.4  # times the first guess: the second number of the first pair
_NEAR = 16  # short probes end when what is open between failing and holding is this part of the servers, or one server
_DECIDING = 4  # probes that are left for long ones, or half of all
_USUAL_SHORT = 6  # short probes of most searches


def find_fewest(run: Run, first: Sequence[int], settings: CapacityConfig, room: float) -> Capacity:
    """Search from these numbers of servers on."""
    probes: list[Probe] = []
    num_short, most = max(1, settings.num_requests // SCOUT_SHARE), settings.max_probes
    failing, holding = _narrow(run, probes, first, num_short, max(most - _DECIDING, most // 2 + 1), _NEAR, room)
    pair = [count for count in (failing, holding or 2 * failing) if count]
    _narrow(run, probes, pair, settings.num_requests, most, pair[-1], room)
    return servers_so_far(probes, room)


def servers_so_far(probes: Sequence[Probe], room: float) -> Capacity:
    """What these probes tell. The estimate is of the load of a server, as a share of all of the load."""
    sides = {probe.holds(room) for probe in probes}
    points = [Point(1 / probe.load, probe.share, probe.num_requests, probe.overloaded) for probe in probes]
    return Capacity(tuple(probes), estimate(points, room) if len(sides) > 1 else None)


def servers_left(probes: Sequence[Probe], settings: CapacityConfig, room: float) -> int:
    """About how many requests the rest of the search will take."""
    num_long = sum(probe.num_requests >= settings.num_requests for probe in probes)
    num_short = 0 if num_long else max(1, _USUAL_SHORT - len(probes))
    is_open = num_long and len({probe.holds(room) for probe in _deciding(probes)}) < 2
    return num_short * (settings.num_requests // SCOUT_SHARE) + max(2 - num_long, 2 * is_open) * settings.num_requests


def bounds(probes: Sequence[Probe], room: float) -> tuple[int, int | None]:
    """The fewest and the most servers that may be the answer; None where no number tried holds."""
    deciding = _deciding(probes)
    failing = max((round(probe.load) for probe in deciding if not probe.holds(room)), default=0)
    holding = [round(probe.load) for probe in deciding if probe.holds(room) and probe.load > failing]
    return failing + 1, min(holding, default=None)


def _deciding(probes: Sequence[Probe]) -> list[Probe]:
    """The longest ones."""
    longest = max(probe.num_requests for probe in probes)
    return [probe for probe in probes if probe.num_requests == longest]


def _narrow(
    run: Run, probes: list[Probe], counts: Sequence[int], num_requests: int, most: int, near: int, room: float
) -> tuple[int, int]:
    """Add probes, `most` in all, until little is open between the largest number of servers that fails and the smallest
    above it that holds; returns both, 0 where there is none."""
    begin = len(probes)
    while True:
        asks = [Ask(count, len(probes) + i, num_requests) for i, count in enumerate(counts)][: most - len(probes)]
        if asks:
            probes += run(asks)
        low, high = bounds(probes[begin:], room) if len(probes) > begin else (1, None)
        failing, holding = low - 1, high or 0
        if not asks or holding and holding - failing <= max(1, holding // near):
            return failing, holding
        counts = _first_pair(probes[0], failing, holding) if len(probes) == 1 else _next(counts, failing, holding)


def _first_pair(first: Probe, failing: int, holding: int) -> list[int]:
    """After a single probe, which tells how many servers would be full."""
    if not first.guess:
        return _next([round(first.load)], failing, holding)
    low = max(ceil(first.guess / _FULL), failing + 1)
    high = max(ceil(_WIDER * low), low + 1)
    return sorted({min(count, holding - 1) for count in (low, high)}) if holding else [low, high]


def _next(counts: Sequence[int], failing: int, holding: int) -> list[int]:
    """Thirds of what is open; ever larger steps where only one side is known."""
    width = counts[-1] - counts[-2] if len(counts) > 1 else counts[0]
    if not holding:
        return [failing + width, failing + 3 * width]
    if failing:
        third = max(1, (holding - failing) // 3)
        return sorted({failing + third, holding - third})
    return sorted({max(1, holding - 4 * width), max(1, holding - width)})


def fewest_row(config: RunConfig, found: Capacity, label: str, overrides: Mapping[str, str]) -> Row:
    """The row of a configuration. `capacity` is the fewest servers that hold, None where no number tried did; `low` and
    `high` are the ends of the 95 % interval."""
    room, rate = room_of(config), config.capacity.target_rate or getattr(config.arrival, "rate", None)
    low, fewest = bounds(found.probes, room)
    row: Row = {"label": label, "overrides": dict(overrides), "cost_source": cost_source(config), "rate": rate}
    row |= {"capacity": None, "low": low, "high": None, "untried": 0, "full": None}
    names = (
        "servers",
        "price_per_gpu_hour",
        "per_gpu",
        "cost_per_hour",
        "cost_per_million_tokens",
        "joules_per_token",
        "interactivity",
    )
    row |= {"num_gpus": found.probes[-1].num_gpus, **dict.fromkeys((*names, "output_throughput"))}
    if fewest is not None:
        best = next(each for each in _deciding(found.probes) if round(each.load) == fewest)
        own = with_load(config, searched_key(config), best.load)
        price = price_per_gpu_hour(own)
        row |= {"capacity": fewest, "untried": fewest - low, "num_gpus": best.num_gpus, "price_per_gpu_hour": price}
        row |= _interval(found.estimate, fewest)
        row |= {"servers": servers_text(own), "per_gpu": rate and rate / best.num_gpus}
        row |= prices(own, best, best.output_throughput)
        row["cost_per_hour"] = price and price * best.num_gpus
        row["full"] = best.guess / best.load if best.guess else None
    row |= {"precision": None, "num_probes": len(found.probes), "probes": [stored(each, room) for each in found.probes]}
    return row


def _interval(found: Estimate | None, fewest: int) -> Row:
    if found is None:
        return {"low": fewest, "high": fewest}
    return {"low": min(fewest, ceil(1 / found.high)), "high": max(fewest, ceil(1 / found.low))}


def fewest_sentence(row: Row, slo: Mapping[str, Any]) -> str:
    """What a search for the fewest servers found."""
    load = f"{number(row['rate'])} requests/s" if row["rate"] else "the load"
    if row["capacity"] is None:
        return f"No number of servers that was tried, up to {row['low'] - 1}, holds {load} with {slo_text(slo)}."
    is_one = row["capacity"] == 1
    text = f"{row['servers']} {'holds' if is_one else 'hold'} {load} with {slo_text(slo)}: {gpus_text(row)}"
    text += f"{costs_text(row).replace(':', ',', 1)}."
    if row["low"] < row["high"]:
        text += f" The 95 % interval is {row['low']} to {row['high']} servers."
    if row["untried"]:
        text += f" The {row['untried']} below {row['capacity']} were not tried: give a higher capacity.max_probes."
    if row["full"] is not None:
        text += f" {'It is' if is_one else 'They are'} {percent(row['full'])} full."
    return text
