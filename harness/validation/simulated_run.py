"""What task=validate and task=calibrate simulate for a measured run, and how they count the simulated latencies."""

from __future__ import annotations

import numpy as np
import pandas as pd

from harness.config import RunConfig, TraceArrival
from harness.config.schema.tasks.validation import LatencyFrom, ValidationConfig
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError, MeasuredRunError
from harness.measured import MeasuredRun, load_measured
from harness.measured.measured_run import queued_times, seen_times, with_latencies

_POOL_TOLERANCE_PCT = 1.0


def load_run(settings: ValidationConfig) -> MeasuredRun:
    """The measured run that `settings` name.

    Raises:
        TwinServeError: the run cannot be used, or latencies are to start at queue times that it does not record.
    """
    assert settings.measured is not None, "the configuration refuses that"
    run = load_measured(settings.measured, settings.workload, settings.columns)
    if settings.latency_from == "queued" and run.requests["queued_time"].isna().any():
        raise MeasuredRunError(f"validation.latency_from=queued: {run.source} does not tell when requests were queued")
    return run


def simulation_config(config: RunConfig, run: MeasuredRun) -> RunConfig:
    """The configuration of the simulation of `run`.

    For another engine's run it is `config` with the measured arrivals, and with the KV pool and the memory of the
    device that the record tells, unless `num_blocks` is configured. For a run of our own engine it is the configuration
    and KV pool of that run, with the cost model, device and figures of `config`.
    """
    if run.own is None:
        told = None if run.kv_tokens is None else max(1, run.kv_tokens // config.block_size)
        num_blocks = config.num_blocks if config.num_blocks is not None else told
        return _on_its_card(config, run).model_copy(update={"arrival": TraceArrival(), "num_blocks": num_blocks})
    taken = (
        "task", "engine", "cost", "device", "validation", "calibration", "progress", "plots", "plot", "figures",
        "perfetto", "perfetto_window",
    )  # fmt: skip
    update = {name: getattr(config, name) for name in taken}
    update |= {"arrival": TraceArrival(), "num_blocks": run.own.result.num_blocks}
    assert config.engine.kind == "sim"
    shared = ("kv_cache_dtype", "max_lookahead_steps")
    of_run = {name: getattr(run.own.config.engine, name) for name in shared}
    update["engine"] = config.engine.model_copy(update=of_run)
    return run.own.config.model_copy(update=update)


def _on_its_card(config: RunConfig, run: MeasuredRun) -> RunConfig:
    """`config` with the memory that the record tells of the device: cards of one name differ."""
    if run.memory_bytes is None:
        return config
    device = config.device.model_copy(update={"memory_bytes": run.memory_bytes})
    return config.model_copy(update={"device": device})


def different_pool(config: RunConfig, run: MeasuredRun) -> list[str]:
    """A line where the pool of `config`, before `simulation_config`, is not the one that the record tells."""
    if run.own is not None or run.kv_tokens is None:
        return []
    if config.num_blocks is not None:
        simulated, how = config.num_blocks * config.block_size, "configured"
    else:
        try:
            simulated, how = resolve(_on_its_card(config, run)).pool.num_tokens, "by the memory formula"
        except ConfigError as error:
            return [f"the measured KV pool held {run.kv_tokens:,} tokens; by the memory formula, {error}"]
    off = 100 * (simulated / run.kv_tokens - 1)
    if abs(off) <= _POOL_TOLERANCE_PCT:
        return []
    used = "which is simulated" if config.num_blocks is not None else "the measured one is simulated"
    return [f"KV pool: {simulated:,} tokens {how}, {run.kv_tokens:,} measured ({off:+.1f} %); {used}"]


def priced_at_medians(config: RunConfig) -> RunConfig:
    """`config` with steps priced at their medians; cost models without a profile have a single price and stay."""
    if config.cost.kind != "profiled":
        return config
    return config.model_copy(update={"cost": config.cost.model_copy(update={"statistic": "median"})})


def simulated_requests(
    requests: pd.DataFrame, steps: pd.DataFrame, latency_from: LatencyFrom, *, asynchronous: bool
) -> pd.DataFrame:
    """The requests table of a simulation with `queued_time` and with latencies that start at `latency_from`.

    With asynchronous scheduling a request is queued at the end of the step during which it arrives, as vLLM records it,
    although the next step has been planned by then.
    """
    arrival = requests["arrival_time"].to_numpy(dtype=np.float64)
    if asynchronous:
        queued = queued_times(arrival, steps)
    else:
        queued = seen_times(arrival, requests["finish_time"].to_numpy(dtype=np.float64), steps)
    return with_latencies(requests.assign(queued_time=queued), latency_from)
