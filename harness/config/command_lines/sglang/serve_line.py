"""A configuration as the command line of SGLang; what SGLang has no flag for is named in a comment at its end."""

from __future__ import annotations

from engine.core.sglang.options import SglangOptions
from harness.config.command_lines.sglang.import_line import BALANCERS, OPTIONS
from harness.config.command_lines.written import line_of, replicas_comment, without_flag
from harness.config.run import RunConfig
from harness.config.schema.system import SimEngine
from simulator.versions.sglang_defaults import MOST_PREFILL_TOKENS

# The scheduler of SGLang, as in conf/scheduler/sglang.yaml, in what no flag changes.
_FIXED = {
    "policy": "sglang", "watermark": 0.0, "allocation": "chunk", "preemption": "recompute", "recompute_token_us": None,
    "eviction": "radix", "queue": "fcfs", "reserved_blocks": 0, "max_padding": None, "long_prefill_token_threshold": 0,
}  # fmt: skip


def serve_command(config: RunConfig, num_blocks: int | None = None) -> str:
    """The `sglang.launch_server` line of a configuration with `scheduler=sglang`.

    `num_blocks` is the size of the pool, which the line states where the configuration has it by vLLM's account of
    memory and not by SGLang's.
    """
    engine, missing = config.engine, {}
    words: list[object] = ["python", "-m", "sglang.launch_server", "--model-path", config.model.name]
    words += ["--dtype", config.model.dtype, "--tp-size", config.tensor_parallel_size]
    words += ["--page-size", config.block_size, "--max-running-requests", config.max_num_seqs]
    has_share = getattr(engine, "memory_account", None) == "sglang"
    if has_share:
        words += ["--mem-fraction-static", config.gpu_memory_utilization]
    if tokens := config.block_size * (config.num_blocks or (0 if has_share else num_blocks or 0)):
        words += ["--max-total-tokens", tokens]
    elif not has_share:
        missing["gpu_memory_utilization"] = config.gpu_memory_utilization
    if config.max_model_len is not None:
        words += ["--context-length", config.max_model_len]
    if config.weight_format != config.model.quantization and config.weight_format == "fp8":
        words += ["--quantization", "fp8"]
    if engine.kv_cache_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    words += _choices(config)
    by_dp = config.replicas > 1 and config.router.rule in BALANCERS.values()
    if by_dp:
        method = next(name for name, rule in BALANCERS.items() if rule == config.router.rule)
        words += ["--dp-size", config.replicas, "--load-balance-method", method]
    if isinstance(engine, SimEngine) and engine.max_lookahead_steps > 1:
        missing["engine.max_lookahead_steps"] = engine.max_lookahead_steps
    if config.scheduler.options.get("ignore_eos"):
        missing["scheduler.options.ignore_eos"] = True  # of requests, not of the server
    comments = [] if by_dp else replicas_comment(config)
    return line_of(words, [*comments, *without_flag("SGLang", config, _FIXED, missing)])


def _choices(config: RunConfig) -> list[object]:
    """The flags of the scheduler and CUDA graphs."""
    scheduler, graphs = config.scheduler, getattr(config.engine, "max_graph_tokens", None)
    options = SglangOptions(**scheduler.options)
    tokens, words = config.max_num_batched_tokens, list[object]()
    words += ["--chunked-prefill-size", tokens if scheduler.enable_chunked_prefill else -1]
    if tokens > MOST_PREFILL_TOKENS or not scheduler.enable_chunked_prefill:
        words += ["--max-prefill-tokens", tokens]
    words += ["--disable-radix-cache"] * (not scheduler.enable_prefix_caching)
    words += ["--disable-overlap-schedule"] * (not scheduler.async_scheduling)
    words += ["--enable-mixed-chunk"] * options.enable_mixed_chunk
    for key, flag in OPTIONS.items():
        if (value := getattr(options, key)) != getattr(SglangOptions(), key):
            words += [flag, value]
    if graphs is not None:
        words += ["--cuda-graph-max-bs-decode", graphs] if graphs else ["--disable-decode-cuda-graph"]
    words += ["--disable-cuda-graph-padding"] * (not getattr(config.engine, "pads_decodes", True))
    return words
