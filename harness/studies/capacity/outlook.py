"""What follows from a number of servers: the load that is left when one of them fails, and twice the load.

Both are simulated as fleets: one server fewer is searched for the highest load that it holds, and at twice the load
what comes of these servers, and how many hold it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from harness.config import RunConfig
from harness.results.summary import number, percent
from harness.studies.capacity.fewest import fewest_row
from harness.studies.capacity.keys import searched_key, with_values
from harness.studies.capacity.load_search import Capacity
from harness.studies.capacity.row import Row, gpus_text, room_of, row_of, stored

_SHARE = 2  # their probes have this part of the requests of a probe: they decide less
# Of the search with one server fewer.
_COARSE = {"capacity.max_probes": 6, "capacity.precision": 0.05}
_WIDE = 0.1  # an interval wider than this part of the capacity is named
NUM_REQUESTS = 4  # times capacity.num_requests: about what both take


class Search(Protocol):
    def __call__(
        self, config: RunConfig, folder: Path, *, first: tuple[int, ...] = (), num_later: int = 0, title: str = ""
    ) -> Capacity: ...


def look_ahead(config: RunConfig, row: Row, folder: Path, search: Search) -> str:
    """Search in folders below `folder`, give the row `one_fewer` and `twice`, and say what they are."""
    text = ""
    if row["capacity"] > 1:
        row["one_fewer"] = _one_fewer(config, row, folder / "one_fewer", search)
        text += _one_fewer_text(row, row["one_fewer"])
    row["twice"] = _twice(config, row, folder / "twice", search)
    return text + _twice_text(row, row["twice"])


def _one_fewer(config: RunConfig, row: Row, folder: Path, search: Search) -> Row:
    """The highest load that the servers hold without one of them."""
    count = row["capacity"] - 1
    start = row["rate"] * count / row["capacity"]
    fleet = {searched_key(config): count, "arrival.rate": start, "capacity.target_rate": None, "capacity.over": None}
    own = with_values(config, {**fleet, **_COARSE, **_shorter(config)})
    later = NUM_REQUESTS * config.capacity.num_requests // 2
    found = row_of(own, search(own, folder, num_later=later, title="one server down: "), "", {})
    longest = max(probe["num_requests"] for probe in row["probes"])
    at_load = next((each for each in row["probes"] if (each["value"], each["num_requests"]) == (count, longest)), None)
    return {"servers": count, "at_load": at_load, **{key: found[key] for key in ("capacity", "low", "high", "probes")}}


def _twice(config: RunConfig, row: Row, folder: Path, search: Search) -> Row:
    """What becomes of the servers at twice the load, and how many hold it."""
    count, rate = row["capacity"], 2 * row["rate"]
    target = None if config.capacity.target_rate is None else rate
    own = with_values(config, {"arrival.rate": rate, "capacity.target_rate": target, **_shorter(config)})
    first = tuple(sorted({count, 2 * count - max(1, count // 8), 2 * count}))
    found = search(own, folder, first=first, num_later=0, title=f"at {number(rate)} requests/s: ")
    same = next(probe for probe in found.probes if round(probe.load) == count)
    keys = ("capacity", "low", "high", "num_gpus", "cost_per_hour", "cost_per_million_tokens", "probes")
    needed = fewest_row(own, found, "", {})
    return {"rate": rate, "same": stored(same, room_of(config)), **{k: needed[k] for k in keys}}


def _shorter(config: RunConfig) -> dict[str, int]:
    return {"capacity.num_requests": max(100, config.capacity.num_requests // _SHARE)}


def _one_fewer_text(row: Row, fewer: Row) -> str:
    if fewer["capacity"] is None:
        return f" With one of them down the SLO does not hold at any load near {number(row['rate'])} requests/s."
    share = percent(fewer["capacity"] / row["rate"])
    rest = "the other one holds" if fewer["servers"] == 1 else f"the other {fewer['servers']} hold"
    text = f" With one of them down {rest} {number(fewer['capacity'])} requests/s, {share} of the load"
    if fewer["high"] - fewer["low"] > _WIDE * fewer["capacity"]:
        text += f" (95 % interval {number(fewer['low'])} to {number(fewer['high'])})"
    return f"{text}; with {row['capacity'] + 1} servers one may fail."


def _twice_text(row: Row, twice: Row) -> str:
    same, load = twice["same"], f"At {number(twice['rate'])} requests/s"
    if same["holds"]:
        return f" {load} the SLO still holds."
    if same["verdict"] == "overloaded":
        they_are = "it is" if row["capacity"] == 1 else "they are"
        text = f" {load} {they_are} overloaded: latencies grow for as long as it lasts"
    else:
        text = f" {load} {percent(same['share'])} of the requests are beyond a limit"
    if twice["capacity"] is None:
        return f"{text}; no number of servers that was tried holds."
    return f"{text}; {twice['capacity']} servers hold it ({gpus_text(twice)})."
