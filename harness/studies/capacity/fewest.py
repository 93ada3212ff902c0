"""The fewest servers that hold the SLO at a load: the search, by doubling and then halving, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import CapacityConfig
from harness.results.summary import number, percent
from harness.studies.capacity.costs import price_per_gpu_hour
from harness.studies.capacity.keys import searched_key, with_load
from harness.studies.capacity.load_search import Ask, Capacity, Run
from harness.studies.capacity.probe import Probe
from harness.studies.capacity.row import (
    Row,
    cost_source,
    costs_text,
    outcome_text,
    prices,
    room_of,
    servers_text,
    slo_text,
    stored,
)

_FULL = 0.92  # of what servers can bear: more is rarely within an SLO


def find_fewest(run: Run, start: int, settings: CapacityConfig, room: float) -> Capacity:
    """Search from `start` servers on. All probes are of the same length: which number holds is decided by one run each.

    The first probe says how full its servers are, and so about how many are needed.
    """
    probes: list[Probe] = []
    failing, holding, count = 0, 0, start
    while len(probes) < settings.max_probes:
        (probe,) = run([Ask(count, len(probes), settings.num_requests)])
        probes.append(probe)
        if probe.holds(room):
            holding = count
        else:
            failing = count
        if holding == failing + 1:
            break
        count = _next(probe, len(probes), failing, holding)
    return Capacity(tuple(probes), None)


def _next(last: Probe, num_probes: int, failing: int, holding: int) -> int:
    if num_probes == 1 and last.guess and (guess := ceil(last.guess / _FULL)) != last.load:
        return max(guess, failing + 1) if failing else min(guess, holding - 1)
    return (failing + holding) // 2 if holding else 2 * failing


def fewest_row(config: RunConfig, found: Capacity, label: str, overrides: Mapping[str, str]) -> Row:
    """The row of a configuration. `capacity` and `high` are the fewest servers that hold, None where no number tried
    did; from `low` on servers may hold."""
    room, probes, rate = (
        room_of(config),
        found.probes,
        config.capacity.target_rate or getattr(config.arrival, "rate", None),
    )
    best = min([each for each in probes if each.holds(room)], key=lambda each: each.load, default=None)
    failed = [each.load for each in probes if not each.holds(room) and (best is None or each.load < best.load)]
    row: Row = {"label": label, "overrides": dict(overrides), "cost_source": cost_source(config), "rate": rate}
    row |= {"capacity": None, "low": round(max(failed, default=0)) + 1, "high": None, "price_per_gpu_hour": None}
    names = ("servers", "per_gpu", "cost_per_hour", "cost_per_million_tokens", "joules_per_token", "interactivity")
    row |= {"num_gpus": probes[-1].num_gpus, **dict.fromkeys((*names, "output_throughput"))}
    if best is not None:
        own = with_load(config, searched_key(config), best.load)
        price = price_per_gpu_hour(own)
        row |= {"capacity": round(best.load), "high": round(best.load), "num_gpus": best.num_gpus}
        row |= {"servers": servers_text(own), "per_gpu": rate and rate / best.num_gpus, "price_per_gpu_hour": price}
        row |= prices(own, best, best.output_throughput)
        row["cost_per_hour"] = price and price * best.num_gpus
    row |= {"precision": None, "num_probes": len(probes), "probes": [stored(probe, room) for probe in probes]}
    fewer = next((each for each in probes if best is not None and each.load == best.load - 1), None)
    row["full"] = best.guess / best.load if best is not None and best.guess else None
    row["with_one_fewer"] = outlook(fewer) if fewer else None
    return row


def outlook(probe: Probe) -> Row:
    """What becomes of the SLO in a run of other servers or another load."""
    full = probe.guess / probe.load if probe.guess else None
    return {
        "full": full,
        "overloaded": probe.overloaded,
        "share": probe.share,
        "latencies_ms": dict(probe.latencies_ms),
    }


def fewest_sentence(row: Row, slo: Mapping[str, Any]) -> str:
    """What a search for the fewest servers found."""
    load = f"{number(row['rate'])} requests/s" if row["rate"] else "the load"
    if row["capacity"] is None:
        return f"No number of servers that was tried, up to {row['low'] - 1}, holds {load} with {slo_text(slo)}."
    text = f"{row['servers']} hold {load} with {slo_text(slo)}: {row['num_gpus']} GPUs"
    if row["cost_per_hour"] is not None:
        text += f", ${number(row['cost_per_hour'])} an hour"
    text += f"{costs_text(row).replace(':', ',', 1)}."
    if row["low"] < row["capacity"]:
        text += f" {row['low']} to {row['capacity'] - 1} were not tried: give a higher capacity.max_probes."
    if row["full"] is not None:
        text += f" They are {percent(row['full'])} full."
    for name, when in (
        ("with_one_fewer", "When one fails, the others are"),
        ("at_twice_the_load", "At twice the load they are"),
    ):
        if found := row.get(name):
            text += f" {when} {_outlook_text(found)}."
    return text


def _outlook_text(found: Mapping[str, Any]) -> str:
    full = "" if found["full"] is None else f"{percent(found['full'])} full"
    if found["overloaded"]:
        return f"overloaded ({full})" if full else "overloaded"
    return f"{full or 'not overloaded'}: {outcome_text(found['latencies_ms'], found['share'])}"
