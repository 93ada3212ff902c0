"""task=capacity: the highest load at which the SLO of a configuration holds.

<folder>/capacity.json   the question, the answer, and each probe
         capacity.csv    the answer as a table
         probes/         a result folder per run
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import CapacityConfig, SearchConfig
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from harness.results.summary import number
from harness.studies.capacity.fewest import fewest_row, fewest_sentence, find_fewest, outlook
from harness.studies.capacity.keys import counts_servers, load_of, searched_key, unit_of, with_load, with_values
from harness.studies.capacity.load_search import Ask, Capacity, find_capacity
from harness.studies.capacity.probe import Probe
from harness.studies.capacity.row import Row, confirmation_text, room_of, row_of, row_sentence, slo_of, slo_text
from harness.studies.capacity.table import write_document
from harness.studies.capacity.worker_pool import run_all

_SEEDS = 1000  # of a search: probes take seed * 1000 + their number, so that searches with other seeds share none
_CONFIRMING, _AT_TWICE = _SEEDS - 1, _SEEDS - 2
_LARGEST_SEED = (1 << 63) // _SEEDS - 1
_LONGEST_RUN = 50_000_000


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
        KeyboardInterrupt: the search was interrupted; the probes that ended are kept.
    """
    key, console = searched_key(config), console or Console(quiet=True)
    found = search(config, folder, console)
    if counts_servers(key):
        row = fewest_row(config, found, *_named(given))
        config = with_load(config, key, row["capacity"] or load_of(config, key))
        if row["rate"] and row["capacity"]:
            row["at_twice_the_load"] = outlook(_at_twice_the_load(config, key, row, folder))
        sentences = [fewest_sentence(row, slo_of(config))]
    else:
        row = row_of(config, found, *_named(given))
        sentences = [row_sentence(row, key, slo_of(config), config.capacity)]
    if config.capacity.confirm and row["capacity"] is not None and confirms:
        row["confirmed"] = confirm(config, row["low"], folder, console)
        sentences.append(confirmation_text(row["confirmed"], key))
    document = make_document(config, [row], " ".join(sentences), serve_line(config))
    write_document(document, folder)
    return document


def make_document(config: RunConfig, rows: Sequence[Row], sentence: str, command: str) -> dict[str, Any]:
    """The content of capacity.json of one search; the question in words, and what it was asked about."""
    key = searched_key(config)
    slo, end = slo_of(config), "lowest" if counts_servers(key) else "highest"
    return {
        "question": f"the {end} {key} that keeps {slo_text(slo)}, on {config.device.name} with {config.model.name}",
        "over": key,
        "unit": unit_of(key),
        "slo": slo,
        "rows": list(rows),
        "best": 0 if rows[0]["capacity"] is not None else None,
        "sentence": sentence,
        "command": command,
    }


def search(config: RunConfig, folder: Path, console: Console) -> Capacity:
    """Search in `folder`, with a bar that counts probes in a terminal."""
    key, settings = searched_key(config), config.capacity
    if config.seed > _LARGEST_SEED:
        raise ConfigError(
            f"seed={config.seed}: must be <= {_LARGEST_SEED} with task=capacity, whose probes have their own"
        )
    columns = (TextColumn("probes"), BarColumn(bar_width=24), TextColumn("{task.fields[last]}"), TimeElapsedColumn())
    shown = config.progress and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=settings.max_probes, last="")

        def run(asks: Sequence[Ask]) -> list[Probe]:
            probes = run_probes(config, key, folder, asks)
            bar.update(task, advance=len(probes), last=f"{number(probes[-1].load)} {unit_of(key)}")
            return probes

        if counts_servers(key):
            return find_fewest(run, round(load_of(config, key)), settings, room_of(config))
        return find_capacity(run, load_of(config, key), settings, room_of(config))


def run_probes(config: RunConfig, key: str, folder: Path, asks: Sequence[Ask]) -> list[Probe]:
    """Run the probes asked for, each in its folder below `folder`/probes."""
    jobs = []
    for ask in asks:
        probe = probe_config(with_load(config, key, ask.load), ask.number, ask.num_requests)
        name = f"{load_of(probe, key):.6g}-seed{probe.seed}"
        jobs.append((probe, key, folder / "probes" / name))
    return run_all(jobs, config.capacity.workers)


def probe_config(config: RunConfig, number: int, num_requests: int) -> RunConfig:
    """The configuration of a probe: a plain run of `config` with a seed and a number of requests of its own.

    A trace from a file has as many requests as there are; more clients than a tenth of the requests of a closed loop
    would all be in its ramp-up, so that it has up to 10 times as many. Probes leave out their own ramp-up, whatever
    metrics.warmup and metrics.drain say: of a short one at a high load they would leave nothing.
    """
    if config.arrival.kind == "closed_loop":
        num_requests = min(max(num_requests, 10 * config.arrival.concurrency), 10 * num_requests)
    drawn = getattr(config.trace, "num_requests", None) is not None
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


def _at_twice_the_load(config: RunConfig, key: str, row: Row, folder: Path) -> Probe:
    twice = with_values(config, {"capacity.target_rate": 2 * row["rate"]})
    (probe,) = run_probes(twice, key, folder, [Ask(row["capacity"], _AT_TWICE, config.capacity.num_requests)])
    return probe


def confirm(config: RunConfig, load: float, folder: Path, console: Console) -> dict[str, Any]:
    """Run the load for `config.capacity.confirm` times the requests of a probe, with a seed that no probe has."""
    key = searched_key(config)
    num_requests = min(_LONGEST_RUN, round(config.capacity.confirm * config.capacity.num_requests))
    ask = Ask(load, _CONFIRMING, max(1, num_requests))
    with console.status("confirming") if config.progress and console.is_terminal else nullcontext():
        (probe,) = run_probes(config, key, folder, [ask])
    return {
        "value": probe.load,
        "holds": probe.holds(room_of(config)),
        "num_requests": probe.num_requests,
        "share": probe.share,
        "latencies_ms": dict(probe.latencies_ms),
        "verdict": probe.verdict,
        "folder": f"probes/{probe.folder}",
    }


def _named(given: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Overrides as a label and by key."""
    pairs = [each.partition("=") for each in given]
    overrides = {key: value for key, _, value in pairs if key not in ("task", "experiment", "progress", "plots")}
    return " ".join(f"{key}={value}" for key, value in overrides.items()) or "as configured", overrides
