"""task=capacity: the highest load at which the SLO of a configuration holds.

<folder>/capacity.json   the question, the answer, and each probe
         capacity.csv    the answer as a table
         probes/         a result folder per run
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import CapacityConfig, SearchConfig
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from harness.studies.capacity.fewest import fewest_row, fewest_sentence, find_fewest, servers_left, servers_so_far
from harness.studies.capacity.keys import counts_servers, load_of, searched_key, unit_of, with_load, with_values
from harness.studies.capacity.load_search import (
    LONGEST,
    Ask,
    Capacity,
    Interrupted,
    find_capacity,
    requests_left,
    so_far,
)
from harness.studies.capacity.outlook import NUM_REQUESTS, look_ahead
from harness.studies.capacity.probe import Probe
from harness.studies.capacity.progress import search_bar
from harness.studies.capacity.row import Row, confirmation_text, room_of, row_of, row_sentence, slo_of, slo_text, stored
from harness.studies.capacity.table import write_document
from harness.studies.capacity.worker_pool import run_all

_SEEDS = 1000  # of a search: probes take seed * 1000 + their number, so that searches with other seeds share none
_CONFIRMING, _CONFIRMING_RUNS = _SEEDS - 1, 4  # seeds of the runs that confirm go down from there
_LARGEST_SEED = (1 << 63) // _SEEDS - 1
_LONGEST_RUN = 50_000_000
_INTERRUPTED = " Interrupted: this is the answer so far. The same command with the same output folder goes on from it."


def find(
    config: RunConfig,
    folder: Path,
    given: Sequence[str],
    console: Console | None = None,
    *,
    confirms: bool = True,
) -> dict[str, Any]:
    """Search as `config.capacity` says, write what was found and return it. Probes that are in the folder, of the same
    configuration, are not run again.

    Args:
        given: the overrides that made `config`, which name it.
        console: shows how far the search is; None shows nothing.
        confirms: whether what was found may be run once more; the end of a sweep confirms the best only.

    Raises:
        TwinServeError: the configuration or the trace cannot be used.
        KeyboardInterrupt: the search was interrupted. The probes that ended are kept, and what they tell is written if
            there is one.
    """
    console = console or Console(quiet=True)
    interruption: KeyboardInterrupt | None = None
    try:
        found = search(config, folder, console)
    except Interrupted as error:
        found, interruption = error.so_far, error
    row, sentence = _answer(config, found, *_named(given))
    row |= {"interrupted": True} if interruption else {}
    document = make_document(config, [row], sentence, serve_line(_as_found(config, row)))
    if confirms and interruption is None:
        try:
            document["sentence"] += conclude(config, row, folder, console)
        except KeyboardInterrupt as error:
            interruption = error
    if interruption is not None:
        document["sentence"] += _INTERRUPTED
    write_document(document, folder)
    if interruption is not None:
        raise interruption
    return document


def _answer(config: RunConfig, found: Capacity, label: str, overrides: dict[str, str]) -> tuple[Row, str]:
    """The row of what was found, and its sentence."""
    key = searched_key(config)
    if counts_servers(key):
        row = fewest_row(config, found, label, overrides)
        return row, fewest_sentence(row, slo_of(config))
    row = row_of(config, found, label, overrides)
    return row, row_sentence(row, key, slo_of(config), config.capacity)


def _as_found(config: RunConfig, row: Row) -> RunConfig:
    """The configuration with the number of servers that was found."""
    key = searched_key(config)
    return with_load(config, key, row["capacity"]) if counts_servers(key) and row["capacity"] else config


def conclude(config: RunConfig, row: Row, folder: Path, console: Console) -> str:
    """Run what follows a capacity, enter its figures in the row, and return sentences on it.

    After a number of servers: one server fewer, and twice the load. After every capacity: the run that confirms it, if
    it is asked for.
    """
    text, key = "", searched_key(config)
    if row["capacity"] is None:
        return text
    if counts_servers(key) and row["rate"]:
        text += look_ahead(config, row, folder, partial(search, console=console))
    if config.capacity.confirm:
        load = row["capacity"] if counts_servers(key) else row["low"]
        row["confirmed"] = confirm(config, load, folder, console)
        text += f" {confirmation_text(row['confirmed'], key)}"
    return text


def make_document(config: RunConfig, rows: Sequence[Row], sentence: str, command: str) -> dict[str, Any]:
    """The content of capacity.json of one search; the question in words, and what it was asked about."""
    key, slo = searched_key(config), slo_of(config)
    asked = f"the highest {key} that keeps {slo_text(slo)}"
    if counts_servers(key):
        rate = rows[0]["rate"]
        asked = f"how many servers keep {slo_text(slo)}{f' at {rate:g} requests/s' if rate else ''}"
    return {
        "question": f"{asked}, on {config.device.name} with {config.model.name}",
        "over": key,
        "unit": unit_of(key),
        "slo": slo,
        "rows": list(rows),
        "best": 0 if rows[0]["capacity"] is not None else None,
        "sentence": sentence,
        "command": command,
    }


def search(
    config: RunConfig,
    folder: Path,
    console: Console,
    first: Sequence[int] = (),
    num_later: int | None = None,
    title: str = "",
) -> Capacity:
    """Search in `folder`; a terminal shows the answer so far and the time left.

    Args:
        first: numbers of servers to begin with; by default those of the configuration.
        num_later: requests that follow this search, for the time left; by default as many as follow one for servers.
        title: before the answer so far.

    Raises:
        Interrupted: after at least one probe.
    """
    key, settings, room = searched_key(config), config.capacity, room_of(config)
    if config.seed > _LARGEST_SEED:
        raise ConfigError(
            f"seed={config.seed}: must be <= {_LARGEST_SEED} with task=capacity, whose probes have their own"
        )
    of_servers, done = counts_servers(key), list[Probe]()
    left = servers_left if of_servers else requests_left
    if num_later is None:
        num_later = NUM_REQUESTS * settings.num_requests if of_servers else 0
    with search_bar(console, config.progress and console.is_terminal, key, title) as bar:

        def run(asks: Sequence[Ask]) -> list[Probe]:
            probes = run_probes(config, key, folder, asks, max((each.num_warmup for each in done), default=0))
            done.extend(probes)
            if bar.is_shown:
                bar.tell(done, len(probes), left(done, settings, room) + num_later, room)
            return probes

        try:
            if of_servers:
                return find_fewest(run, first or (round(load_of(config, key)),), settings, room)
            return find_capacity(run, load_of(config, key), settings, room)
        except KeyboardInterrupt:
            if not done:
                raise
            raise Interrupted(servers_so_far(done, room) if of_servers else so_far(done, room)) from None


def run_probes(config: RunConfig, key: str, folder: Path, asks: Sequence[Ask], num_warmup: int = 0) -> list[Probe]:
    """Run the probes asked for, each in its folder below `folder`/probes.

    A probe in which prefix caches were filling to the end is run again with twice as many requests, the first of which,
    the warm-up, do not count, until the caches are full or the run is as long as any probe may be.
    """
    jobs = []
    for ask in asks:
        asked = probe_config(with_load(config, key, ask.load), ask.number, ask.num_requests, num_warmup)
        name = f"{load_of(asked, key):.6g}-seed{asked.seed}{f'-after{num_warmup}' if num_warmup else ''}"
        jobs.append((asked, key, folder / "probes" / name, num_warmup))
    probes = run_all(jobs, config.capacity.workers)
    # the warm-up is shorter than asked for where a trace has no more requests
    filling = [number for number, each in enumerate(probes) if each.is_filling and each.num_warmup == num_warmup]
    longest = max((probes[number].num_requests for number in filling), default=0)
    if filling and longest + num_warmup < LONGEST * config.capacity.num_requests:
        longer = run_probes(config, key, folder, [asks[number] for number in filling], longest + 2 * num_warmup)
        for number, probe in zip(filling, longer, strict=True):
            probes[number] = probe
    return probes


def probe_config(config: RunConfig, number: int, num_requests: int, num_warmup: int = 0) -> RunConfig:
    """The configuration of a probe: a plain run of `config` with a seed and a number of requests of its own, and
    `num_warmup` before these.

    A trace from a file gives at most the requests that it has. A closed loop gets 10 requests for each client, up to 10
    times `num_requests`: with fewer, all would be ramp-up. metrics.warmup and metrics.drain do not count, as they would
    leave nothing of a short probe at a high load; probes cut their ramp-up themselves.
    """
    if config.arrival.kind == "closed_loop":
        num_requests = min(max(num_requests, 10 * config.arrival.concurrency), 10 * num_requests)
    num_requests += num_warmup
    drawn = _is_drawn(config)
    limit = getattr(config.trace, "limit", None)
    size: dict[str, float] = (
        {"trace.num_requests": num_requests} if drawn else {"trace.limit": min(num_requests, limit or num_requests)}
    )
    if config.capacity.target_rate is not None:
        size["arrival.rate"] = config.capacity.target_rate
    plain = config.model_copy(
        update={
            "task": "run",
            "seed": config.seed * _SEEDS + number,
            "progress": False,
            "plots": False,
            "capacity": CapacityConfig(),
            "search": SearchConfig(),
            "metrics": config.metrics.model_copy(update={"warmup": 0.0, "drain": 0.0}),
        }
    )
    return with_values(plain, size)


def _is_drawn(config: RunConfig) -> bool:
    """Whether the requests of the trace are drawn, as many as are asked for, and not read from a file."""
    return getattr(config.trace, "num_requests", None) is not None


def confirm(config: RunConfig, load: float, folder: Path, console: Console) -> dict[str, Any]:
    """Run the load for `config.capacity.confirm` times the requests of a probe, with seeds that no probe has.

    Requests that are drawn are divided among up to four runs, none shorter than a probe, which take all cores: the
    share of all is as sure as that of one long run. A file has one run, as each would begin with the same rows.
    """
    key, room, times = searched_key(config), room_of(config), config.capacity.confirm
    num_runs = max(1, min(_CONFIRMING_RUNS, int(times))) if _is_drawn(config) else 1
    num_requests = max(1, min(_LONGEST_RUN, round(times * config.capacity.num_requests)) // num_runs)
    asks = [Ask(load, _CONFIRMING - number, num_requests) for number in range(num_runs)]
    with console.status("confirming") if config.progress and console.is_terminal else nullcontext():
        runs = run_probes(config, key, folder, asks)
    total = sum(each.num_requests for each in runs)
    share = max(sum(each.beyond[name] * each.num_requests for each in runs) / total for name in runs[0].beyond)
    latencies = {name: [each.latencies_ms[name] for each in runs] for name in runs[0].latencies_ms}
    return {
        "value": runs[0].load,
        "holds": share <= room and not any(each.overloaded for each in runs),
        "num_requests": total,
        "share": share,
        "latencies_ms": {name: [min(values), max(values)] for name, values in latencies.items()},
        "runs": [stored(each, room) for each in runs],
    }


def _named(given: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Overrides as one text, and as a dict by key."""
    pairs = [each.partition("=") for each in given]
    overrides = {key: value for key, _, value in pairs if key not in ("task", "experiment", "progress", "plots")}
    return " ".join(f"{key}={value}" for key, value in overrides.items()) or "as configured", overrides
