"""A configuration as the command line of `trtllm-serve`; its comment holds the file of `--config` and names what
TensorRT-LLM has no option for.

trtllm-serve Qwen/Qwen3-8B --config options.yml  # options.yml is {"disable_overlap_scheduler": true}

The file is JSON, which is YAML too.
"""

from __future__ import annotations

import json
from typing import Any

from engine.core.trtllm.options import TrtllmOptions
from harness.config.command_lines.trtllm.import_line import DEFAULT_BLOCK_SIZE, OPTIONS_FILE
from harness.config.command_lines.written import line_of, replicas_comment, without_flag
from harness.config.run import RunConfig
from harness.config.schema.system import SimEngine

# The scheduler of TensorRT-LLM, as in conf/scheduler/trtllm.yaml, in what no option changes.
_FIXED = {
    "policy": "trtllm", "watermark": 0.0, "allocation": "prompt", "preemption": "recompute", "recompute_token_us": None,
    "eviction": "stored", "queue": "fcfs", "full_hit": "recompute_block", "reserved_blocks": 0, "max_padding": None,
    "long_prefill_token_threshold": 0,
}  # fmt: skip


def serve_command(config: RunConfig, num_blocks: int | None = None) -> str:
    """The `trtllm-serve` line of a configuration with `scheduler=trtllm`.

    `num_blocks` is the size of the pool, which the file states where the configuration has it by another account of
    memory than TensorRT-LLM's.
    """
    words: list[object] = ["trtllm-serve", config.model.name, "--tp_size", config.tensor_parallel_size]
    if config.expert_parallel:
        words += ["--ep_size", config.tensor_parallel_size]
    words += ["--max_batch_size", config.max_num_seqs, "--max_num_tokens", config.max_num_batched_tokens]
    if config.max_model_len is not None:
        words += ["--max_seq_len", config.max_model_len]
    has_share = getattr(config.engine, "memory_account", None) == "trtllm"
    if has_share:
        words += ["--kv_cache_free_gpu_memory_fraction", config.gpu_memory_utilization]
    words += ["--enable_chunked_prefill"] * config.scheduler.enable_chunked_prefill
    comments = []
    if options := _options(config, None if has_share else num_blocks):
        words += ["--config", OPTIONS_FILE]
        comments.append(f"{OPTIONS_FILE} is {json.dumps(options)}")
    missing = _missing(config)
    if not has_share and not num_blocks:
        missing["gpu_memory_utilization"] = config.gpu_memory_utilization
    comments += [*replicas_comment(config), *without_flag("TensorRT-LLM", config, _FIXED, missing)]
    return line_of(words, comments)


def _options(config: RunConfig, num_blocks: int | None) -> dict[str, Any]:
    """What the file says, where it is not the default."""
    scheduler, options = config.scheduler, TrtllmOptions(**config.scheduler.options)
    cache: dict[str, Any] = {}
    if config.block_size != DEFAULT_BLOCK_SIZE:
        cache["tokens_per_block"] = config.block_size
    if blocks := config.num_blocks or num_blocks:
        cache["max_tokens"] = blocks * config.block_size
    if not scheduler.enable_prefix_caching:
        cache["enable_block_reuse"] = False
    if config.engine.kv_cache_dtype == "fp8":
        cache["dtype"] = "fp8"
    rules = ("capacity_scheduler_policy", "context_chunking_policy")
    chosen = {name: getattr(options, name) for name in rules if getattr(options, name) != getattr(TrtllmOptions, name)}
    found: dict[str, Any] = {"kv_cache_config": cache} if cache else {}
    if chosen:
        found["scheduler_config"] = {name: value.upper() for name, value in chosen.items()}
    if not scheduler.async_scheduling:
        found["disable_overlap_scheduler"] = True
    for name in ("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"):
        if value := getattr(options, name):
            found[name] = value
    graphs = getattr(config.engine, "max_graph_tokens", None)
    if graphs is not None:
        found["cuda_graph_config"] = {"max_batch_size": graphs} if graphs else None
    return found


def _missing(config: RunConfig) -> dict[str, Any]:
    """Settings of the server that TensorRT-LLM has no option for, or that are its checkpoint's."""
    missing: dict[str, Any] = {}
    if config.weight_format == "fp8" != config.model.quantization:
        missing["quantization"] = "fp8"  # of the checkpoint
    if isinstance(config.engine, SimEngine) and config.engine.max_lookahead_steps > 1:
        missing["engine.max_lookahead_steps"] = config.engine.max_lookahead_steps
    if config.data_parallel_size > 1:
        missing["data_parallel_size"] = config.data_parallel_size
    return missing
