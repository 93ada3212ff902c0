"""task=observe: drives a server with a few loads, fits what can be seen from outside, and predicts a load not fitted.

    probe            max_num_seqs clients: the requests/s that the server can serve
    fitted loads     shares of that, `observe.loads`; constants are fitted to the statistics of each of these loads, in
                     other things as task=calibrate does
    held-out load    `observe.held_out_load`; these requests are predicted, as task=validate does

Fitted and held-out loads take turns (`harness.calibration.ladder`). All of them are one measured run, in the folder
`measured`, whose ladder.csv says which requests are of which load.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibration.calibrate import calibrate
from harness.calibration.ladder import MOST, PROBE, make_ladder
from harness.config import PoissonArrival, RunConfig, SimEngine
from harness.engines.endpoint.engine import EndpointEngine
from harness.engines.resolving.system import resolve
from harness.record.progress_bar import Terminal
from harness.results.compared_names import NAMES
from harness.results.stored.files import CALIBRATION, LADDER, MEASURED, write_whole
from harness.results.terminal import print_line
from harness.studies.outcome import Given
from harness.studies.run import serve
from harness.validation.validate import validate
from harness.workload.arrivals import ClosedLoop, OpenLoop
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.costs.constants import ONLY_IF_NAMED

_FEW_HITS = 0.02  # shares of prompt tokens that were cached: short prompts begin alike by chance
_KNOWN = (
    "the server knew prompts of this run, which a simulation does not: empty its prefix cache (engine.reset_cache=true "
    "where it can), or give another seed"
)
_OF_PROFILES = ("step_overhead_us", *ONLY_IF_NAMED)


def observe(config: RunConfig, folder: Path, given: Sequence[str] = ()) -> dict[str, Any]:
    """Drive the server, and leave in `folder` the measured run, calibration.yaml and the validation of the held-out
    load; returns the content of validation.json. `given` are the overrides that made `config`.

    Raises:
        TwinServeError: the server, the trace or the configuration cannot be used.
    """
    console = Console()
    simulated = config.model_copy(update={"engine": SimEngine(), "task": "calibrate"})
    constants = config.calibration.constants or _seen_from_outside(simulated)
    settings = config.observe
    probe_s = PROBE * settings.time_s
    print_line(console, f"probe: {config.max_num_seqs} clients for at most {probe_s:,.0f} s")
    rate, answer_s, num_rows = _probed(config, probe_s)
    rng = np.random.default_rng(config.seed)
    times, slices = make_ladder(rate, answer_s, settings, num_rows // 2, rng)
    *fitted, held_out = (f"{share * rate:.3g}" for share in (*settings.loads, settings.held_out_load))
    print_line(console, f"the server serves about {rate:.3g} requests/s")
    print_line(
        console,
        f"ladder: {len(times):,} requests in {times[-1]:,.0f} s, in {len(slices)} slices that take turns: "
        f"{', '.join(fitted)} requests/s (fitted) and {held_out} (held out)",
    )
    trace, config = _first(config, len(times))
    config = config.model_copy(update={"arrival": PoissonArrival(rate=len(times) / times[-1])})
    run = serve(config, trace, OpenLoop(np.rint(times * 1e9).astype(np.int64)), Terminal(config, console))
    replace(run, given=Given(given)).save(folder / MEASURED)
    write_whole(folder / MEASURED / LADDER, lambda path: slices.to_csv(path, index=False))
    run.check(folder / MEASURED)
    if run.summary["prompts_share"] is False and (run.summary["prefix_cache_hit_rate"] or 0) > _FEW_HITS:
        print_line(console, f"! {_KNOWN}", "yellow")
    fit, document = _fitted_and_scored(simulated, constants, folder)
    for line in conclusion(fit, document, folder / CALIBRATION, run.result.num_blocks):
        print_line(console, line)
    return document


def _fitted_and_scored(
    config: RunConfig, constants: tuple[str, ...], folder: Path
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The contents of calibration.yaml, of the fitted loads, and of validation.json, of the held-out one."""
    fit = {"part": "fitted", "objective": "statistics", "constants": constants}
    validation = config.validation.model_copy(update={"measured": f"run:{folder / MEASURED}"})
    updates = {"validation": validation, "calibration": config.calibration.model_copy(update=fit)}
    fitted = calibrate(config.model_copy(update=updates), folder)
    cost = config.cost.model_copy(update={"calibration": str(folder / CALIBRATION)})
    validation = validation.model_copy(update={"score": "held_out"})
    return fitted, validate(config.model_copy(update={"validation": validation, "cost": cost}), folder)


def _seen_from_outside(config: RunConfig) -> tuple[str, ...]:
    """The constants to fit: of a profile one factor for all its kernels, else all of the cost model's own."""
    system = resolve(config)
    if system.cost.kind == "profiled":
        return _OF_PROFILES
    return tuple(name for name in system.constants() if name != "front_end_token_us" or system.cost.kind != "linear")


def _probed(config: RunConfig, time_s: float) -> tuple[float, float, int]:
    """The requests/s that the server can serve, how long an answer takes then in s, and the number of requests that the
    trace has for a ladder.

    The prompts are of another seed than those of the ladder, which are to find none of them in the prefix cache.
    """
    trace, config = _first(config.model_copy(update={"seed": config.seed + 1}), 2 * MOST)
    engine = EndpointEngine(config, trace, ClosedLoop(len(trace.rows), config.max_num_seqs))
    timer = threading.Timer(time_s, engine.stop)
    try:
        timer.start()
        engine.run()
        requests = engine.record.tables(trace, engine.unfinished()).requests
        end_s = engine.record.now_ns * 1e-9
    finally:
        timer.cancel()
        engine.close()
    rate = tokens_per_s(requests, end_s / 3, end_s) / float(trace.rows["num_output_tokens"].mean())
    answer_s = (requests["finish_time"].fillna(end_s) - requests["arrival_time"]).mean()
    return rate, float(answer_s), len(trace.rows)


def tokens_per_s(requests: pd.DataFrame, start_s: float, end_s: float) -> float:
    """Output tokens from `start_s` to `end_s`, as if those of a request came at equal distances; requests without an
    end go on at `end_s`. None where no time has passed."""
    if not end_s > start_s:
        return 0.0
    first, last = requests["first_token_time"], requests["finish_time"].fillna(end_s)
    before = ((start_s - first) / (last - first).clip(lower=1e-9)).clip(0, 1)  # of one token: none or all
    return float((requests["num_output_tokens"] * (1 - before)).sum()) / (end_s - start_s)


def _first(config: RunConfig, count: int) -> tuple[Trace, RunConfig]:
    """The first `count` requests of the trace, and the configuration with that many requests."""
    key = "limit" if getattr(config.trace, "num_requests", None) is None else "num_requests"
    count = min(count, getattr(config.trace, "limit", None) or count)
    config = config.model_copy(update={"trace": config.trace.model_copy(update={key: count})})
    return load_trace(config.trace, seed=config.seed, with_times=False), config


def conclusion(fitted: Mapping[str, Any], held_out: Mapping[str, Any], path: Path, num_blocks: int | None) -> list[str]:
    """The errors of the fitted loads, those of the held-out one with their noise, and what a simulation of this server
    is given."""
    first = {name: 100 * error for name, error in fitted["objective"]["errors_after"].items()}
    second = {f"{row['metric']} {row['statistic']}": row["error_pct"] for row in held_out["errors"]}
    noise = {f"{row['metric']} {row['statistic']}": row["noise_floor_pct"] for row in held_out["errors"]}
    pool = f" num_blocks={num_blocks}" if num_blocks else ""
    return [
        f"fitted loads: {_listed(first)}",
        f"held-out load: {_listed(second, noise)}",
        f"use it with: cost.calibration={path}{pool}",
    ]


def _listed(errors: Mapping[str, float | None], noise: Mapping[str, float | None] | None = None) -> str:
    """The medians and p90 of `errors`, in percent, with their noise; but those that are undefined, as of a measured
    value of 0."""
    found = []
    for metric in ("ttft", "tpot", "e2el"):
        for statistic, label in (("median", "p50"), ("p90", "p90")):
            name = f"{metric} {statistic}"
            if (error := errors.get(name)) is not None:
                floor = (noise or {}).get(name)
                found.append(f"{NAMES[metric]} {label} {error:+.1f}{f' ± {floor:.1f}' if floor is not None else ''} %")
    return ", ".join(found)
