"""A configuration as the command line of `vllm serve`, and back.

What one side cannot express is named: `serve_command` ends in a comment, `overrides` raises. A comment `# vLLM 0.19.0`
is the version that the line is for, and is read on the way back.
"""

from __future__ import annotations

import json
from typing import Any

from harness.config.command_lines.vllm.import_line import overrides as overrides
from harness.config.command_lines.vllm.offloading import has_offloading, transfer_words
from harness.config.command_lines.written import line_of, replicas_comment, without_flag
from harness.config.run import RunConfig
from harness.config.schema.speculation import DraftModelSpeculation, NgramSpeculation
from harness.config.schema.system import ALL_GATHER, SimEngine
from simulator.fleets.handover import Role
from simulator.versions.vllm_versions import vllm_version

# The scheduler of vLLM, as in conf/scheduler/vllm.yaml, in what no flag and no version changes.
_FIXED = {
    "policy": "admission_order", "watermark": 0.0, "allocation": "chunk", "preemption": "recompute",
    "recompute_token_us": None, "full_hit": "recompute_block", "reserved_blocks": 1, "max_padding": None,
}  # fmt: skip
_SIDES = {"serve": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}
_ORDERS = (("fcfs", "last"), ("priority", "least_urgent"))  # --scheduling-policy fcfs and priority


def serve_command(config: RunConfig, num_blocks: int | None = None, hand_over: tuple[str, Role] | None = None) -> str:
    """The `vllm serve` line of a configuration; a comment at its end names the version of vLLM that is asked for, and
    the settings that vLLM has no flag for.

    The line is for one server, with `hand_over`, a connector and a role, for one that gives KV to others or takes it:
    what prices a step and what sends the requests is no part of it. vLLM starts with no `max_model_len` that its pool
    cannot hold: the line has one that `num_blocks`, the size of the pool, holds.
    """
    words = ["vllm", "serve", config.model.name, *_sizes(config, num_blocks or config.num_blocks), *_choices(config)]
    words += transfer_words(config.tiers, _mover(hand_over))
    if drafts := _drafts(config):
        words += ["--speculative-config", json.dumps(drafts)]
    return line_of(words, _comments(config))


def _mover(hand_over: tuple[str, Role] | None) -> dict[str, Any] | None:
    """The connector that gives KV to other servers or takes it."""
    if hand_over is None:
        return None
    connector, role = hand_over
    return {"kv_connector": connector, "kv_role": "kv_both" if connector == "NixlConnector" else _SIDES[role]}


def _sizes(config: RunConfig, num_blocks: int | None) -> list[object]:
    """The flags of formats, GPUs, memory and lengths."""
    words: list[object] = ["--dtype", config.model.dtype, "--tensor-parallel-size", config.tensor_parallel_size]
    if config.pipeline_parallel_size > 1:
        words += ["--pipeline-parallel-size", config.pipeline_parallel_size]
    if config.data_parallel_size > 1:
        words += ["--data-parallel-size", config.data_parallel_size]
    if config.expert_parallel:
        words.append("--enable-expert-parallel")
    backend = getattr(config.engine, "all2all_backend", ALL_GATHER)
    if config.data_parallel_size > 1 and backend != ALL_GATHER:
        words += ["--all2all-backend", backend]
    words += ["--block-size", config.block_size]
    words += ["--max-num-seqs", config.max_num_seqs, "--max-num-batched-tokens", config.max_num_batched_tokens]
    words += ["--gpu-memory-utilization", config.gpu_memory_utilization]
    longest = longest_that_fits(config, num_blocks)
    if config.max_model_len is not None or longest < config.model.max_position_embeddings:
        words += ["--max-model-len", longest]
    if config.kv_cache_memory_bytes is not None:
        words += ["--kv-cache-memory-bytes", config.kv_cache_memory_bytes]
    if config.num_blocks is not None:
        words += ["--num-gpu-blocks-override", config.num_blocks]
    if config.weight_format != config.model.quantization and config.weight_format == "fp8":
        words += ["--quantization", "fp8"]
    if config.engine.kv_cache_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    return words


def _choices(config: RunConfig) -> list[object]:
    """The flags of the scheduler, the front end and CUDA graphs."""
    scheduler, graphs = config.scheduler, getattr(config.engine, "max_graph_tokens", None)
    words: list[object] = []
    if (scheduler.queue, scheduler.victim) == ("priority", "least_urgent"):
        words += ["--scheduling-policy", "priority"]
    if scheduler.long_prefill_token_threshold:
        words += ["--long-prefill-token-threshold", scheduler.long_prefill_token_threshold]
    words += ["--no-enable-chunked-prefill"] * (not scheduler.enable_chunked_prefill)
    words += ["--no-enable-prefix-caching"] * (not scheduler.enable_prefix_caching)
    words += ["--no-scheduler-reserve-full-isl"] * (scheduler.admission == "first_chunk")
    words += ["--async-scheduling" if scheduler.async_scheduling else "--no-async-scheduling"]
    if config.frontend.processes > 1:
        words += ["--api-server-count", config.frontend.processes]
    if graphs is not None:
        words += ["--max-cudagraph-capture-size", graphs] if graphs else ["--enforce-eager"]
    return words


def _comments(config: RunConfig) -> list[str]:
    version, speculation = getattr(config.engine, "vllm_version", None), config.speculation
    comments = [f"vLLM {version}"] if version else []
    if isinstance(speculation, DraftModelSpeculation) and speculation.drafter is None:
        comments.append("eagle3 stands for draft heads of any kind: name yours")
    return [*comments, *replicas_comment(config), *_missing(config)]


def longest_that_fits(config: RunConfig, num_blocks: int | None) -> int:
    """Tokens of prompt and output together that a sequence may have, in a pool of `num_blocks` (None: any)."""
    longest = config.max_model_len or config.model.max_position_embeddings
    assert config.block_size is not None, "resolved by the configuration"
    return longest if num_blocks is None else min(longest, num_blocks * config.block_size)


def _drafts(config: RunConfig) -> dict[str, Any] | None:
    """The JSON of `--speculative-config`; None without drafts. Heads that take no time have no name here."""
    speculation = config.speculation
    if isinstance(speculation, NgramSpeculation):
        names = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
        method = "ngram_gpu" if config.scheduler.async_scheduling else "ngram"  # the other one of which vLLM refuses
        return {"method": method, **{name: getattr(speculation, name) for name in names}}
    if isinstance(speculation, DraftModelSpeculation):
        number, drafter = speculation.num_speculative_tokens, speculation.drafter
        kind = {"method": "eagle3"} if drafter is None else {"method": "draft_model", "model": drafter.name}
        return {**kind, "num_speculative_tokens": number}
    return None


def _missing(config: RunConfig) -> list[str]:
    """The comment on settings of the server that no flag of vLLM gives it."""
    scheduler, engine = config.scheduler, config.engine
    version = vllm_version(getattr(engine, "vllm_version", None))
    given: dict[str, Any] = {}
    if (scheduler.queue, scheduler.victim) not in _ORDERS:
        given |= {"scheduler.queue": scheduler.queue, "scheduler.victim": scheduler.victim}
    if isinstance(engine, SimEngine) and engine.max_lookahead_steps > 1:
        given["engine.max_lookahead_steps"] = engine.max_lookahead_steps
    if isinstance(engine, SimEngine) and engine.memory_account not in (None, version.memory_account):
        given["engine.memory_account"] = engine.memory_account
    fixed = _FIXED | {"eviction": version.eviction, "options": version.options}
    return without_flag("vLLM", config, fixed, given, has_offloading=has_offloading(config.tiers))
