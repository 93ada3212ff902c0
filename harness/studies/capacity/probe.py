"""A probe: one run at one load, stored as any run, and what it says about the capacity.

<folder>/probes/<value>-seed<k>/   config.yaml, inputs.json, summary.json: a run; its tables only of a real engine, as a
                                   simulation is repeated from its configuration sooner than read
                                   probe.json: what the search reads, written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.documents import DocumentError, read_json
from harness.config import RunConfig, load, to_yaml
from harness.errors import ConfigError
from harness.results.columns import floats, nan_min
from harness.results.measures.servers import step_integral
from harness.results.measures.slo import beyond_limits
from harness.results.statistics.warming import warming_of
from harness.results.stored.files import INPUTS, SUMMARY, write_summary, write_whole
from harness.results.stored.inputs import input_digests, read_inputs
from harness.results.tables import Rows, RunResult, percentiles_of
from harness.studies.capacity.keys import counts_servers, load_of
from harness.studies.outcome import Run
from harness.studies.run import serve_trace

_PROBE = "probe.json"
_FILLING = 0.1  # of the requests at least: they meet a system that is not yet full


@dataclass(frozen=True)
class Probe:
    """What a run says about the capacity.

    Attributes:
        load: what the searched key made, such as requests/s.
        beyond: share of requests beyond the limit of each latency, by its name; those that the system did not serve, or
            not in full, are beyond all. Requests that arrived while it filled are left out.
        share: the largest of them.
        latencies_ms: the percentile of the SLO of each of these latencies, over the same requests.
        guess: load at which the system itself would be full, as estimated from this run, or how many servers would be;
            0 where that is not known.
        busy: share of the time of arrivals in which a step ran.
        num_requests: without the `num_warmup` first requests, which fill prefix caches.
        is_filling: whether prefix caches still became warmer when the run ended.
    """

    load: float
    seed: int
    num_requests: int
    folder: str
    share: float
    beyond: Mapping[str, float]
    latencies_ms: Mapping[str, float]
    verdict: str
    guess: float
    output_throughput: float
    tokens_per_request: float
    median_tpot_ms: float
    busy: float
    num_gpus: int
    num_warmup: int = 0
    is_filling: bool = False

    def holds(self, room: float) -> bool:
        """Whether the SLO holds; `room` is the share of requests that may be beyond a limit."""
        return self.share <= room and not self.overloaded

    @property
    def overloaded(self) -> bool:
        """Whether latencies grew for as long as the run lasted."""
        return self.verdict == "overloaded"


def run_probe(config: RunConfig, key: str, folder: Path, num_warmup: int = 0) -> Probe:
    """Run `config` in `folder`, or read what an earlier search left there of the same configuration and inputs.

    num_warmup: how many of its requests only fill prefix caches; fewer where a trace has fewer than are asked for.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
        EngineError, KeyboardInterrupt: the run ended early; the folder then counts as not run.
    """
    if (found := _finished(config, folder)) is not None:
        return found
    (folder / _PROBE).unlink(missing_ok=True)
    served = run_quietly(config, folder, with_tables=config.engine.kind != "sim")
    probe = _measure(config, key, folder.name, served.result, served.summary, num_warmup)
    text = json.dumps(asdict(probe), indent=2)
    write_whole(folder / _PROBE, lambda path: path.write_text(text, encoding="utf-8"))
    return probe


def run_quietly(config: RunConfig, folder: Path, *, with_tables: bool = True) -> Run:
    """A run as `task=run` makes it, without a word; `with_tables` leaves its tables in the folder, too. Raises as
    `run_probe`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    inputs = input_digests(config)
    write_whole(folder / "config.yaml", lambda path: path.write_text(to_yaml(config), encoding="utf-8"))
    write_whole(folder / INPUTS, lambda path: path.write_text(json.dumps(inputs, indent=2), encoding="utf-8"))
    served = serve_trace(config, write=lambda run: _write(run, folder, with_tables))
    served.check(folder)
    return served


def _write(run: Run, folder: Path, with_tables: bool) -> None:
    if with_tables:
        run.write(folder)
    else:
        write_summary(run.summary, folder)


def _finished(config: RunConfig, folder: Path) -> Probe | None:
    """The probe that is in the folder, if it is one of this configuration with the inputs as they are."""
    if not (folder / _PROBE).is_file():
        return None
    try:
        if load(folder / "config.yaml") == config and read_inputs(folder) == input_digests(config):
            return Probe(**read_json(folder / _PROBE))
    except (ConfigError, DocumentError, OSError, TypeError):
        pass
    return None


def _measure(
    config: RunConfig, key: str, name: str, result: RunResult, summary: Mapping[str, Any], num_warmup: int
) -> Probe:
    num_missing = max(0, (_num_asked(config) or 0) - len(result.request_rows))
    num_warmup, warming = max(0, num_warmup - num_missing), warming_of(result.request_rows)
    requests = _steady(result.request_rows, summary["ramp_up_s"] or 0.0, max(num_warmup, warming.num_cold))
    slow = beyond_limits(requests, config.metrics.slo)
    beyond = {name: float(flags.mean()) for name, flags in slow.items()}
    return Probe(
        load=load_of(config, key),
        seed=config.seed,
        num_requests=len(result.request_rows) - num_warmup,
        folder=name,
        share=max(beyond.values()),
        beyond=beyond,
        latencies_ms={each: _percentile(requests, each, config.metrics.slo.percentile) for each in beyond},
        verdict=summary["verdict"],
        guess=_full_load(config, key, summary),
        output_throughput=summary["window_output_throughput"] or summary["output_throughput"] or 0.0,
        tokens_per_request=summary["total_output_tokens"] / max(1, summary["completed"]),
        median_tpot_ms=summary["median_tpot_ms"] or 0.0,
        busy=_busy(result),
        num_gpus=summary["num_gpus"],
        num_warmup=num_warmup,
        is_filling=not warming.is_over,
    )


def _num_asked(config: RunConfig) -> int | None:
    """Requests of a run at most; None for all of a trace from a file."""
    number: int | None = getattr(config.trace, "num_requests", None) or getattr(config.trace, "limit", None)
    return number


def _full_load(config: RunConfig, key: str, summary: Mapping[str, Any]) -> float:
    if not summary["offered_load"]:
        return 0.0
    if counts_servers(key):
        return load_of(config, key) * float(summary["offered_load"])
    if key != "arrival.rate":
        return 0.0
    return load_of(config, key) / float(summary["offered_load"])


def _steady(requests: Rows, ramp_up_s: float, num_cold: int) -> Rows:
    """The requests without those that arrived while the system filled: the first tenth, those in the ramp-up, and the
    first `num_cold`, whose prefixes were not cached yet."""
    arrival = floats(requests, "arrival_time")
    order = np.argsort(np.argsort(arrival, kind="stable"), kind="stable")  # NaN, which did not arrive, is last
    filling = (order < max(_FILLING * len(order), num_cold)) | (arrival < nan_min(arrival) + ramp_up_s)
    return requests if filling.all() else requests[~filling]


def _percentile(requests: Rows, name: str, percentile: float) -> float:
    seconds = floats(requests[(requests["status"] == "finished").to_numpy()], name)
    seconds = seconds[~np.isnan(seconds)]
    return float(percentiles_of(seconds, [percentile])[0]) * 1e3 if len(seconds) else 0.0


def _busy(result: RunResult) -> float:
    """Share of the time of arrivals in which a step ran, over all servers; of all of the run, where all arrive at
    once."""
    arrival, starts = floats(result.request_rows, "arrival_time"), floats(result.step_rows, "start_time")
    durations = floats(result.step_rows, "duration")
    if not len(starts):
        return 0.0
    first, last = float(np.nanmin(arrival)), float(np.nanmax(arrival))
    last = last if last > first else float((starts + durations).max())
    done = step_integral(result.step_rows, durations, [first, last])
    return min(1.0, float(done[1] - done[0]) / result.num_tracks / (last - first)) if last > first else 0.0
