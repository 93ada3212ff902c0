"""task=observe: drives a server with a few loads, fits what can be seen from outside, and predicts a load not fitted.

    probe                 as many clients as there are seats: how many requests/s the server can serve
    ladder, first half    0.2, 0.5 and 0.8 of that; constants are fitted to these requests, as task=calibrate does
    ladder, second half   0.65 of that; these requests are predicted, as task=validate does

The ladder is one measured run, in the folder `measured`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.calibration.calibrate import calibrate
from harness.config import RunConfig, SimEngine
from harness.engines.endpoint.engine import EndpointEngine
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.record.progress_bar import Terminal
from harness.results.stored.files import CALIBRATION, MEASURED
from harness.results.tables import Floats
from harness.results.terminal import print_line
from harness.studies.run import serve
from harness.validation.validate import validate
from harness.workload.arrivals import ClosedLoop, OpenLoop
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.costs.constants import ONLY_IF_NAMED

_PROBE, _LADDER = 0.2, 0.65  # of the time; the rest is for the last answers
_FITTED, _HELD_OUT = (0.2, 0.5, 0.8), 0.65  # loads, as shares of what the probe found
_MOST, _FEWEST = 2000, 20  # requests of each half
_OF_PROFILES = ("step_overhead_us", *ONLY_IF_NAMED)


def observe(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Drive the server for `config.observe.time_s` at most, and leave in `folder` the measured run, calibration.yaml
    and the validation of the second half; returns the content of validation.json.

    Raises:
        TwinServeError: the server, the trace or the configuration cannot be used.
    """
    console = Console()
    simulated = config.model_copy(update={"engine": SimEngine(), "task": "calibrate"})
    constants = config.calibration.constants or _seen_from_outside(simulated)
    rate, num_rows = _probed(config)
    times = ladder(rate, _LADDER * config.observe.time_s, num_rows // 2, np.random.default_rng(config.seed))
    print_line(console, f"the server can about {rate:.3g} requests/s; {len(times):,} requests in {times[-1]:,.0f} s")
    trace, config = _first(config, len(times))
    run = serve(config, trace, OpenLoop(np.rint(times * 1e9).astype(np.int64)), Terminal(config, console))
    run.save(folder / MEASURED)
    run.check(folder / MEASURED)
    fitted, document = _fitted_and_scored(simulated, constants, folder)
    for line in conclusion(fitted, document, folder / CALIBRATION, run.result.num_blocks):
        print_line(console, line)
    return document


def _fitted_and_scored(
    config: RunConfig, constants: tuple[str, ...], folder: Path
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The contents of calibration.yaml, of the first half, and of validation.json, of the second."""
    fit = {"part": "first_half", "objective": "statistics", "constants": constants}
    validation = config.validation.model_copy(update={"measured": f"run:{folder / MEASURED}"})
    updates = {"validation": validation, "calibration": config.calibration.model_copy(update=fit)}
    fitted = calibrate(config.model_copy(update=updates), folder)
    cost = config.cost.model_copy(update={"calibration": str(folder / CALIBRATION)})
    validation = validation.model_copy(update={"score": "second_half"})
    return fitted, validate(config.model_copy(update={"validation": validation, "cost": cost}), folder)


def _seen_from_outside(config: RunConfig) -> tuple[str, ...]:
    """The constants to fit: of a profile one factor for all its kernels, else all of the cost model's own."""
    system = resolve(config)
    if system.cost.kind == "profiled":
        return _OF_PROFILES
    return tuple(name for name in system.constants() if name != "front_end_token_us" or system.cost.kind != "linear")


def _probed(config: RunConfig) -> tuple[float, int]:
    """How many requests/s the server can serve, and how many rows the trace has, as far as a ladder would take them.

    The prompts are of another seed than those of the ladder, which are to find none of them in the prefix cache.
    """
    trace, config = _first(config.model_copy(update={"seed": config.seed + 1}), 2 * _MOST)
    engine = EndpointEngine(config, trace, ClosedLoop(len(trace.table), config.max_num_seqs))
    timer = threading.Timer(_PROBE * config.observe.time_s, engine.stop)
    try:
        timer.start()
        engine.run()
        requests = engine.record.tables(trace, engine.unfinished()).requests
        end_s = engine.record.now_ns * 1e-9
    finally:
        timer.cancel()
        engine.close()
    return tokens_per_s(requests, end_s / 3, end_s) / float(trace.table["num_output_tokens"].mean()), len(trace.table)


def tokens_per_s(requests: pd.DataFrame, start_s: float, end_s: float) -> float:
    """Output tokens from `start_s` to `end_s`, as if those of a request came at equal distances; requests without an
    end go on at `end_s`."""
    first, last = requests["first_token_time"], requests["finish_time"].fillna(end_s)
    shares = (last - first.clip(lower=start_s)) / (last - first).clip(lower=1e-9)
    return float((requests["num_output_tokens"] * shares.clip(0, 1)).sum()) / (end_s - start_s)


def _first(config: RunConfig, count: int) -> tuple[Trace, RunConfig]:
    """So many requests of the trace, and the configuration that has no more of them."""
    key = "limit" if getattr(config.trace, "num_requests", None) is None else "num_requests"
    config = config.model_copy(update={"trace": config.trace.model_copy(update={key: count})})
    return load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace"), config


def ladder(rate: float, time_s: float, most: int, rng: np.random.Generator) -> Floats:
    """Arrival times in s of Poisson processes one after the other, half of the requests fitted and half held out.

    Raises:
        ConfigError: there is too little time, or there are too few requests.
    """
    half = min(int(rate * time_s / (len(_FITTED) / sum(_FITTED) + 1 / _HELD_OUT)), _MOST, most)
    if half < _FEWEST:
        raise ConfigError(
            f"task=observe: {2 * half} requests at {rate:.3g} requests/s, and {2 * _FEWEST} are needed at least; give "
            "more time with observe.time_s, or a longer trace"
        )
    counts = [round(half * share / sum(_FITTED)) for share in _FITTED[:-1]]
    counts += [half - sum(counts), half]
    gaps = rng.standard_exponential(2 * half) / np.repeat((*_FITTED, _HELD_OUT), counts) / rate
    return np.cumsum(gaps) - gaps[0]


def conclusion(fitted: Mapping[str, Any], held_out: Mapping[str, Any], path: Path, num_blocks: int | None) -> list[str]:
    """The errors of both halves, and what a simulation of this server is given."""
    first = {name: 100 * error for name, error in fitted["objective"]["errors_after"].items()}
    second = {f"{row['metric']} {row['statistic']}": row["error_pct"] for row in held_out["errors"]}
    pool = f" num_blocks={num_blocks}" if num_blocks else ""
    return [
        f"first half, fitted: {_listed(first)}",
        f"second half, not fitted: {_listed(second)}",
        f"what if: cost.calibration={path}{pool}",
    ]


def _listed(errors: Mapping[str, float]) -> str:
    names = [f"{metric} {statistic}" for metric in ("ttft", "tpot", "e2el") for statistic in ("median", "p90")]
    return ", ".join(f"{name.upper()} {errors[name]:+.1f} %" for name in names if name in errors)
