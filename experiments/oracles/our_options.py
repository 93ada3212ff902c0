"""The options with which the scheduling core of this repository decides as another engine does."""

from __future__ import annotations

from engine.core.offloading.rules import OffloadingRules
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from experiments.oracles.cases import Options
from experiments.oracles.sglang_cases import SglangOptions
from experiments.oracles.trtllm_cases import TrtllmOptions
from simulator.versions.vllm_versions import vllm_version


def as_vllm(options: Options, version: str = "0.19") -> SchedulerOptions:
    """The options with which the core decides as this version of vLLM does; see "versions" in the README."""
    has_priorities = options.scheduling_policy == "priority"
    return SchedulerOptions(
        policy="admission_order",
        watermark=0.0,
        enable_prefix_caching=options.enable_prefix_caching,
        allocation="chunk",
        admission="full_prompt" if options.scheduler_reserve_full_isl else "first_chunk",
        eviction=vllm_version(version).eviction,
        options=vllm_version(version).options,
        victim="least_urgent" if has_priorities else "last",
        full_hit="recompute_block",
        queue="priority" if has_priorities else "fcfs",
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        enable_chunked_prefill=options.enable_chunked_prefill,
        async_scheduling=options.async_scheduling,
    )


def offloading_as_vllm(options: Options, version: str) -> OffloadOptions | None:
    """The rules of this version's connector; None without offloading."""
    if not options.num_host_blocks:
        return None
    return OffloadOptions(rules=OffloadingRules(options.chunk_blocks, **vllm_version(version).offloading))


def as_sglang(options: SglangOptions) -> SchedulerOptions:
    """The options with which the core decides as SGLang does."""
    own = ("schedule_policy", "schedule_conservativeness", "enable_mixed_chunk", "ignore_eos")
    return SchedulerOptions(
        policy="sglang",
        options={name: getattr(options, name) for name in own},
        watermark=0.0,
        enable_prefix_caching=options.enable_prefix_caching,
        allocation="chunk",
        eviction="radix",
        queue="fcfs",
        enable_chunked_prefill=options.chunked_prefill_size is not None,
        async_scheduling=options.async_scheduling,
    )


def as_trtllm(options: TrtllmOptions) -> SchedulerOptions:
    """The options with which the core decides as TensorRT-LLM does."""
    own = (
        "capacity_scheduler_policy", "context_chunking_policy", "batch_wait_timeout_iters",
        "batch_wait_max_tokens_ratio",
    )  # fmt: skip
    return SchedulerOptions(
        policy="trtllm",
        options={name: getattr(options, name) for name in own},
        watermark=0.0,
        enable_prefix_caching=options.enable_prefix_caching,
        eviction="stored",
        queue="fcfs",
        enable_chunked_prefill=options.enable_chunked_prefill,
        async_scheduling=options.async_scheduling,
    )
