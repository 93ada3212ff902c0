"""The result of a run from what its engine recorded, with what a reader must know of the run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from harness.config import RunConfig
from harness.config.command_lines.serving import fleet_command
from harness.config.command_lines.vllm.serve_line import longest_that_fits
from harness.config.huggingface.keys import ignored_notes
from harness.config.pools import Pool, pools_of
from harness.engines.engine import Engine
from harness.engines.resolving.known_error import APART, load_of
from harness.errors import EngineError
from harness.results.stored.environment import environment
from harness.results.tables import RunResult
from harness.workload.arrivals import OpenLoop
from harness.workload.expectation import expected_lengths
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals


def collect(
    config: RunConfig,
    trace: Trace,
    arrivals: Arrivals,
    engine: Engine,
    failure: BaseException | None,
    wall_s: float,
) -> RunResult:
    """The tables of a run and what its summary says of it; `failure` is what ended it early, after `wall_s`."""
    recorded = engine.record.tables(trace, engine.unfinished())
    engine.record.forget()
    pools, smallest = pools_of(config), min(engine.pool_blocks, default=None)
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "quantization": config.weight_format,
        "kv_cache_dtype": config.kv_cache_dtype,
        "device": engine.device_name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "num_servers": config.num_servers,
        "num_gpus": config.num_gpus,
        "router": config.router.rule if config.num_servers > 1 else None,
        "pools": _described(pools, engine.pool_blocks) if len(pools) > 1 else None,
        "trace": trace.name,
        "trace_source": trace.source,
        "trace_file": trace.stamp,
        "prompts_share": trace.prompts_share,
        "expected_lengths": expected_lengths(config.trace, longest_that_fits(config, smallest)),
        "arrival": config.arrival.kind,
        "open_loop": isinstance(arrivals, OpenLoop),
        "policy": config.scheduler.policy,
        "allocator": config.allocator.kind,
        "ended_early": _reason(failure),
        "bad_rows": trace.bad_rows,
        "notes": [
            *trace.notes,
            *ignored_notes(config.model.ignored_keys, has_tower=config.model.tower_parameters > 0),
            *_pool_notes(config, smallest),
            *engine.notes(),
        ],
        "vllm_command": fleet_command(pools, engine.pool_blocks, config.kv_connector) if engine.pool_blocks else None,
        "kv_pool": engine.describe(),
        "kv_block_bytes": engine.block_bytes,
        "cost_source": engine.step_times_from(),
        "cost_model": engine.cost_model_text(APART if config.is_apart else load_of(config.arrival.kind)),
        "wall_time_s": wall_s,
        "run_time_s": engine.record.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": _environment(),
        **engine.meta,
    }
    block_size = meta.pop("block_size", config.block_size)
    return RunResult(
        recorded.request_rows, recorded.step_rows, recorded.gaps, engine.num_blocks, block_size, failure is None, meta,
        recorded.spans, recorded.itls,
    )  # fmt: skip


def _described(pools: Sequence[Pool], pool_blocks: Sequence[int]) -> list[dict[str, Any]]:
    """For the summary, of each pool what its servers are."""
    found, first = [], 0
    for (role, config), num_blocks in zip(pools, pool_blocks, strict=True):
        found.append(
            {
                "role": role,
                "servers": [*range(first, first + config.num_servers)],
                "device": config.device.name,
                "tensor_parallel_size": config.tensor_parallel_size,
                "pipeline_parallel_size": config.pipeline_parallel_size,
                "num_gpus": config.num_gpus,
                "max_num_seqs": config.max_num_seqs,
                "num_blocks": num_blocks,
                "plans_ahead": config.scheduler.async_scheduling,
            }
        )
        first += config.num_servers
    return found


@cache
def _environment() -> dict[str, Any]:
    """Asked for once in a process, which does not change: git takes longer than a short simulation."""
    return environment()


def _pool_notes(config: RunConfig, num_blocks: int | None) -> list[str]:
    """What is said of a pool, or of steps, that do not hold the longest sequence that is allowed."""
    longest, fits = longest_that_fits(config, None), longest_that_fits(config, num_blocks)
    notes, most = [], config.max_num_batched_tokens
    if fits < longest:
        notes.append(
            f"the KV pool holds {fits:,} tokens, less than one request of max_model_len={longest}, with which vLLM "
            f"refuses to start; max_model_len={fits} fits"
        )
    if config.scheduler.policy == "admission_order" and not config.scheduler.enable_chunked_prefill and most < longest:
        notes.append(
            f"prompts are not cut, and max_num_batched_tokens={most} is less than max_model_len={longest}, with which "
            f"vLLM refuses to start; a prompt of more than {most} tokens is rejected"
        )
    return notes


def _reason(failure: BaseException | None) -> str | None:
    """Why a run ended early, in one line for the summary; None for a complete run."""
    match failure:
        case None:
            return None
        case KeyboardInterrupt():
            return "interrupted"
        case EngineError():
            return str(failure)
    return " ".join(f"{type(failure).__name__}: {failure}".split())
