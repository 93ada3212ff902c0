"""What must hold between the keys of a run."""

from engine.core.kv.reserved.reservation import FORESEEING
from engine.core.scheduler_options import conflict_with_drafts, conflict_with_reservations
from engine.engine_config import conflict_with_pages
from harness.config.run_keys import RunKeys
from harness.config.schema.allocator import ContiguousAllocator
from harness.config.schema.changes import check_changes
from harness.config.schema.endpoint import OpenAIEngine
from harness.config.schema.fleet import AlikeFleet, check_pools, check_ranks, check_stages, check_whole_experts
from harness.config.schema.speculation import check_fits
from harness.config.schema.system import RealEngineConfig
from harness.config.schema.tasks.needs import check_measured, check_profile, check_searches, check_serving, check_sinks
from harness.config.schema.tiers import check_offload

_REAL_FORMATS = ("none", "fp8", "fp8_block")


def check_together(config: RunKeys) -> None:
    """Raise ValueError for the first of these that does not hold."""
    _check_limits(config)
    _check_pages(config)
    _check_kv_bytes(config)
    _check_window(config)
    _check_scheduler(config)
    _check_allocator(config)
    _check_own_cache(config)
    check_offload(config.tiers, config.scheduler, config.engine)
    _check_connector(config)
    if config.trace.n > config.max_num_seqs:
        raise ValueError(f"trace.n={config.trace.n}: must be <= max_num_seqs={config.max_num_seqs}")
    _check_preemption(config)
    check_fits(
        config.speculation, config.engine, config.scheduler, max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens, tensor_parallel_size=config.tensor_parallel_size,
    )  # fmt: skip
    _check_tensor_parallel(config)
    _check_fleet(config)
    _check_quantization(config)
    _check_tasks(config)


def _check_limits(config: RunKeys) -> None:
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens={config.max_num_batched_tokens}: must be >= max_num_seqs={config.max_num_seqs}, "
            "so that every running sequence can take part in a step"
        )
    limit = config.model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ValueError(
            f"max_model_len={config.max_model_len}: must be <= {limit}, model.max_position_embeddings "
            f"of {config.model.name}"
        )


def _check_pages(config: RunKeys) -> None:
    if isinstance(config.engine, RealEngineConfig) and (
        conflict := conflict_with_pages(config.engine.attention_backend, config.block_size)
    ):
        raise ValueError(conflict)


def _check_kv_bytes(config: RunKeys) -> None:
    if config.kv_cache_memory_bytes is None:
        return
    if isinstance(config.engine, RealEngineConfig):
        raise ValueError(f"kv_cache_memory_bytes={config.kv_cache_memory_bytes}: in simulation only; give num_blocks")
    if config.num_blocks is not None:
        raise ValueError(f"kv_cache_memory_bytes={config.kv_cache_memory_bytes}: give it or num_blocks, not both")


def _check_window(config: RunKeys) -> None:
    window = config.perfetto_window
    if window is not None and not (len(window) == 2 and window[0] < window[1]):
        raise ValueError(f"perfetto_window={list(window)}: must be two times in s, [from, to], the first smaller")
    if window is not None and not config.perfetto:
        raise ValueError(f"perfetto_window={list(window)}: read with perfetto=true only")
    if config.perfetto and isinstance(config.engine, OpenAIEngine):
        raise ValueError("perfetto=true: engine=openai sees no steps of the server")


def _check_scheduler(config: RunKeys) -> None:
    if config.num_blocks is not None and config.num_blocks <= config.scheduler.reserved_blocks:
        raise ValueError(
            f"num_blocks={config.num_blocks}: must be > {config.scheduler.reserved_blocks}, scheduler.reserved_blocks"
        )
    if config.scheduler.async_scheduling and config.engine.max_lookahead_steps > 1:
        raise ValueError(
            f"engine.max_lookahead_steps={config.engine.max_lookahead_steps}: must be 1 with "
            "scheduler.async_scheduling=true, which plans each step on its own"
        )


def _check_allocator(config: RunKeys) -> None:
    if config.speculation.kind != "none" and (drafts := conflict_with_drafts(config.scheduler)):
        raise ValueError(f"scheduler.{drafts}")
    if not isinstance(config.allocator, ContiguousAllocator):
        return
    if conflict := conflict_with_reservations(config.scheduler):
        raise ValueError(f"scheduler.{conflict}, or allocator=paged")
    if config.trace.n > 1:
        raise ValueError(
            f"trace.n={config.trace.n}: the sequences of a request share the blocks of its prompt, and contiguous "
            "reservations share none; use allocator=paged"
        )
    if config.tiers.is_on:
        name = "host" if config.tiers.host.gib else "store"
        raise ValueError(
            f"tiers.{name}.gib={getattr(config.tiers, name).gib:g}: contiguous reservations stay on the device; use "
            "tiers=none or allocator=paged"
        )
    if config.allocator.reserve in FORESEEING and config.engine.kind != "sim":
        raise ValueError(
            f"allocator.reserve={config.allocator.reserve}: engine={config.engine.kind} does not know what a request "
            "will generate; use engine=sim, allocator=contiguous_requested or allocator=contiguous_max"
        )


def _check_own_cache(config: RunKeys) -> None:
    if config.scheduler.eviction not in ("radix", "stored"):
        return
    most = config.max_num_batched_tokens
    wrong = {
        f"scheduler.async_scheduling=true with engine={config.engine.kind} (set it to false)": isinstance(
            config.engine, RealEngineConfig
        )
        and config.scheduler.async_scheduling
        and config.scheduler.eviction == "radix",
        f"speculation={config.speculation.kind}": config.speculation.kind != "none",
        f"tiers.host.gib={config.tiers.host.gib:g}": config.tiers.host.gib > 0,
        f"tiers.store.gib={config.tiers.store.gib:g}": config.tiers.store.gib > 0,
        f"pipeline_parallel_size={config.pipeline_parallel_size}": config.pipeline_parallel_size > 1,
        f"trace.n={config.trace.n}": config.trace.n > 1,
        "fleet: prompts on servers of their own": config.is_apart,
        f"block_size={config.block_size} above max_num_batched_tokens={most}": config.block_size > most,
    }
    for name, is_so in wrong.items():
        if is_so:
            raise ValueError(f"{name}: not with scheduler={config.scheduler.policy}")


def _check_connector(config: RunKeys) -> None:
    if not config.tiers.offload or config.tiers.rule != "vllm":
        return
    wrong = {
        f"speculation={config.speculation.kind}": config.speculation.kind == "draft_model",
        f"data_parallel_size={config.data_parallel_size}": config.data_parallel_size > 1,
        f"trace.n={config.trace.n}": config.trace.n > 1,
        "fleet: prompts on servers of their own": config.is_apart,
    }
    for name, is_so in wrong.items():
        if is_so:
            raise ValueError(f"{name}: not with tiers.rule=vllm; use tiers.rule=evicted")


def _check_preemption(config: RunKeys) -> None:
    mode = config.scheduler.preemption
    if mode in ("swap", "auto") and not config.tiers.host.gib:
        raise ValueError(
            f"scheduler.preemption={mode}: needs host memory to move KV blocks to; use tiers=host or set "
            "tiers.host.gib > 0"
        )
    if mode == "auto" and config.engine.kind != "sim" and config.scheduler.recompute_token_us is None:
        raise ValueError(
            f"scheduler.recompute_token_us=null: engine={config.engine.kind} has no cost model to take it from, and "
            "scheduler.preemption=auto needs the time of a token"
        )


def _check_tensor_parallel(config: RunKeys) -> None:
    if config.model.blocks and config.engine.kind != "sim" and not getattr(config.engine, "weights", None):
        raise ValueError(
            f"model.blocks: engine={config.engine.kind} builds layers that are alike; give engine.weights, or use "
            "engine=sim"
        )
    if wrong := config.model.shares_out(config.tensor_parallel_size):
        raise ValueError(f"tensor_parallel_size={config.tensor_parallel_size}: {wrong} of {config.model.name}")


def _check_fleet(config: RunKeys) -> None:
    may_be_several = config.engine.kind == "cpu" and config.task == "run" and config.tensor_parallel_size == 1
    for key in ("replicas", "pipeline_parallel_size"):
        if key == "replicas" and may_be_several:
            continue
        if getattr(config, key) > 1 and config.engine.kind != "sim":
            raise ValueError(f"{key}={getattr(config, key)}: engine={config.engine.kind} is one server; use engine=sim")
    if config.router.view_of_steps and config.engine.kind != "sim":
        raise ValueError(f"router.view_of_steps=true: engine={config.engine.kind} tells how it is; use engine=sim")
    if not isinstance(config.fleet, AlikeFleet):
        check_pools(config.fleet, config.replicas, config.engine, config.task, config.trace.n)
    most = min(config.model.num_layers, config.max_num_seqs)
    alone = isinstance(config.fleet, AlikeFleet) and config.pipeline_parallel_size == 1
    if isinstance(config.fleet, AlikeFleet):  # a pool of others has a configuration of its own, with fleet=replicas
        check_ranks(
            config.data_parallel_size, config.model, config.engine, shares_out=config.expert_parallel,
            steps_alone=alone and config.speculation.kind == "none",
        )  # fmt: skip
        if config.expert_parallel:
            check_whole_experts(config.num_expert_ranks, config.model, config.engine, config.cost)
    check_changes(
        config.failures, config.autoscaler, config.fleet, config.num_servers, replicas=config.replicas,
        is_plain=config.engine.kind == "sim" and alone and config.data_parallel_size == 1 and not config.tiers.is_on,
        slo=config.metrics.slo,
    )  # fmt: skip
    check_stages(config.pipeline_parallel_size, most, config.engine, config.scheduler, config.tiers, config.cost)


def _check_quantization(config: RunKeys) -> None:
    if config.weight_format == "mxfp4" and not config.model.has_experts:
        raise ValueError(
            f"quantization=mxfp4: quantises experts only, and {config.model.name} has none; use fp8, int4 or nvfp4"
        )
    if isinstance(config.engine, RealEngineConfig) and config.weight_format not in _REAL_FORMATS:
        raise ValueError(
            f"quantization={config.weight_format}: engine={config.engine.kind} has {', '.join(_REAL_FORMATS)}; use one "
            "of these or engine=sim"
        )


def _check_tasks(config: RunKeys) -> None:
    check_profile(config.task, config.profile, config.engine, config.cost)
    check_measured(config.task, config.engine, config.validation, config.calibration, config.observe)
    check_searches(config.task, config.metrics.slo, config.capacity, config.search)
    check_sinks(config.task, config.sinks)
    check_serving(config.task, config.serve, config.engine)
    reads = config.task in ("report", "plot")
    if reads and not config.results:
        raise ValueError(f"results: task={config.task} needs result folders, e.g. results=[outputs/a,outputs/b]")
    if not reads and config.results:
        raise ValueError("results: read by task=report and plot only; add task=report to compare earlier results")
