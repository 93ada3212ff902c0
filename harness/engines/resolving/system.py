"""The system that a configuration describes, resolved once into what the simulator takes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from engine.core.kv.reserved.reservation import Contiguous
from engine.core.scheduler_options import SchedulerOptions
from engine.engine_config import KVDtype
from harness.config import DeviceConfig, ModelConfig, RunConfig, SimEngine
from harness.config.devices import device_named
from harness.config.schema.system import HIGH_THROUGHPUT
from harness.engines.resolving.drafting import accepted_from, resolve_speculation
from harness.engines.resolving.memory import kv_pool, resolve_tiers
from harness.engines.resolving.pricing import cost_choice, priced
from simulator.device import Device
from simulator.models.decoder import decoder
from simulator.models.kv_pool import KVPool
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.system import System
from simulator.versions.front_end_times import ROUND_TRIP, FrontEndTimes
from simulator.versions.vllm_versions import VllmVersion, vllm_front_end, vllm_version

_NO_CACHED_STATES = "prefixes are not cached: vLLM caches none by default where layers keep a state for each sequence"


def resolve(config: RunConfig) -> System:
    """The system that `config` simulates; its profile and its calibration file are read here.

    Raises:
        ConfigError: the model does not fit on the device, the device has no arithmetic for its weights, or the profile
            or the calibration file cannot be used.
    """
    engine = config.engine
    assert isinstance(engine, SimEngine), "the other engines are measured"
    model = _served_model(config)
    drafter = _drafter_shape(config)
    device = device_rates(config.device)
    graphs = _graph_tokens(config)
    pool = kv_pool(config, model, drafter, device, graphs)
    system = System(
        model=model,
        device=device,
        tensor_parallel_size=config.tensor_parallel_size,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or config.model.max_position_embeddings,
        scheduler=_plain(config.scheduler),
        pool=pool,
        pipeline_parallel_size=config.pipeline_parallel_size,
        data_parallel_size=config.data_parallel_size,
        cost=cost_choice(config),
        contiguous=contiguous_rule(config),
        tiers=resolve_tiers(config.tiers, pool, config.tensor_parallel_size, config.network, version_of(config), model),
        compress=engine.compress,
        max_lookahead_steps=engine.max_lookahead_steps,
        speculation=resolve_speculation(config.speculation, config.seed),
        draft_token_s=getattr(config.speculation, "draft_token_s", 0.0),
        front_end=_front_end(config),
    )
    if model.state_bytes() and system.scheduler.enable_prefix_caching:
        scheduler = replace(system.scheduler, enable_prefix_caching=False)
        system = replace(system, scheduler=scheduler, notes=(*system.notes, _NO_CACHED_STATES))
    system = priced(system, config, drafter, graphs)
    if config.speculation.kind != "none":
        system = replace(system, notes=(*system.notes, accepted_from(config.speculation)))
    return system


def pool_of(config: RunConfig) -> KVPool:
    """The KV pool of one rank; raises ConfigError where the model does not fit on the device."""
    return kv_pool(
        config, _served_model(config), _drafter_shape(config), device_rates(config.device), _graph_tokens(config)
    )


def _served_model(config: RunConfig) -> Model:
    model = model_shape(config.model, config.weight_format, config.kv_cache_dtype)
    return model if (ranks := config.num_expert_ranks) == 1 else model.with_experts_on(ranks)


def model_shape(model: ModelConfig, weight_format: str, kv_cache_dtype: KVDtype) -> Model:
    """A model of the configuration, with weights of a format, as the simulator sees it."""
    own = weight_format == model.quantization
    sizes = model.model_dump(exclude={"kv_cache_dtype", "ignored_keys"}) | {
        "part_formats": {part: QUANTIZATIONS[name] for part, name in model.part_formats.items() if own},
        "blocks": tuple(block.made for block in model.blocks),
        "dtype": "fp32" if model.dtype == "float32" else "bf16",
        "kv_dtype": kv_cache_dtype,
        "quantization": QUANTIZATIONS[weight_format],
    }
    return decoder(**sizes)


def contiguous_rule(config: RunConfig) -> Contiguous | None:
    """How contiguous reservations are made, as the core takes it; None where blocks are paged."""
    given = config.allocator
    return None if given.kind == "paged" else Contiguous(given.reserve, given.fit, given.max_tokens)


def device_rates(device: DeviceConfig) -> Device:
    """A device of the configuration as the simulator sees it."""
    rates = device.model_dump(exclude={"price_per_gpu_hour", "tdp_w", "kernels_like"})
    like = None if device.kernels_like is None else device_rates(device_named(device.kernels_like))
    return Device(**rates, kernels_like=like)


def _drafter_shape(config: RunConfig) -> Model | None:
    """The model that drafts, with weights of its own format."""
    drafter = getattr(config.speculation, "drafter", None)
    if drafter is None:
        return None
    kv_dtype = config.engine.kv_cache_dtype
    return model_shape(drafter, drafter.quantization, drafter.kv_cache_dtype if kv_dtype == "auto" else kv_dtype)


def _plain(options: SchedulerOptions) -> SchedulerOptions:
    """The scheduler's options without the configuration's own type."""
    return SchedulerOptions(**{field.name: getattr(options, field.name) for field in fields(SchedulerOptions)})


def _graph_tokens(config: RunConfig) -> int | None:
    """`engine.max_graph_tokens`; 0 with DeepEP's kernels of high throughput, with which vLLM runs no CUDA graphs
    (`cudagraph_mode` in its config/compilation.py)."""
    assert isinstance(config.engine, SimEngine)
    is_eager = config.data_parallel_size > 1 and config.engine.all2all_backend == HIGH_THROUGHPUT
    return 0 if is_eager else config.engine.max_graph_tokens


def version_of(config: RunConfig) -> VllmVersion:
    """The version of vLLM that is predicted."""
    return vllm_version(getattr(config.engine, "vllm_version", None))


def _front_end(config: RunConfig) -> FrontEndTimes | None:
    """What requests cost before the engine: as given, and else as of the kind and the version of vLLM."""
    given = config.frontend
    if given.kind == "none":
        return None
    found = ROUND_TRIP
    if given.kind == "vllm":
        assert isinstance(config.engine, SimEngine)
        renders = given.endpoint == "chat" and "gpt-oss" not in config.model.name.lower()  # which has no template
        found = vllm_front_end(config.engine.vllm_version, renders_template=renders)
    times: dict[str, Any] = {
        "request_ns": given.request_ms and round(1e6 * given.request_ms),
        "prompt_token_ns": given.prompt_token_us and 1e3 * given.prompt_token_us,
        "latency_ns": given.latency_ms and round(1e6 * given.latency_ms),
        "spread": given.latency_spread,
        "processes": given.processes,
        "passes": 2 if config.router.renders else 1,
    }
    return found._replace(**{name: value for name, value in times.items() if value is not None})
