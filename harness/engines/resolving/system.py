"""The system that a configuration describes, resolved once into what the simulator takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from engine.core.scheduler_options import SchedulerOptions
from harness.config import CustomCost, ProfiledCost, RunConfig, SimEngine
from harness.config.schema.system import ALL_GATHER, AUTO, All2AllBackend
from harness.engines.resolving import calibration_files
from harness.engines.resolving.custom_cost import maker_of
from harness.engines.resolving.drafting import accepted_from, resolve_speculation
from harness.engines.resolving.kv_pool import graph_tokens, kv_pool
from harness.engines.resolving.shapes import contiguous_rule, device_rates, model_shape
from harness.engines.resolving.shipped_kernels import as_of_device, made_of, profile_of
from harness.engines.resolving.tier_sizes import resolve_tiers
from harness.errors import ConfigError
from simulator.costs.stage import largest_stage
from simulator.importers import open_profile
from simulator.models.kv_pool import KVPool
from simulator.models.model import Model
from simulator.models.weight_formats import NONE, UnsupportedQuantizationError
from simulator.profile.checks import check_fits, check_units
from simulator.profile.graph_sizes import ENGINES, decode_graphs
from simulator.profile.profile import Profile, ProfileError
from simulator.profile.weight_only import is_widened, widened
from simulator.profile.whole_experts import with_whole_experts
from simulator.system import CostChoice, System
from simulator.table import table_of
from simulator.versions.front_end_times import ROUND_TRIP, FrontEndTimes
from simulator.versions.vllm_versions import KERNELS, OWN_CHOICES, VllmVersion, vllm_front_end, vllm_version

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
    pool = pool_of(config)
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
        cost=_cost_choice(config),
        contiguous=contiguous_rule(config),
        tiers=resolve_tiers(config.tiers, pool, config.tensor_parallel_size, config.network, version_of(config)),
        compress=engine.compress,
        cache_outputs=engine.cache_outputs,
        max_lookahead_steps=engine.max_lookahead_steps,
        speculation=resolve_speculation(config.speculation, config.seed),
        draft_token_s=getattr(config.speculation, "draft_token_s", 0.0),
        front_end=_front_end(config),
    )
    if model.state_bytes() and system.scheduler.enable_prefix_caching:
        scheduler = replace(system.scheduler, enable_prefix_caching=False)
        system = replace(system, scheduler=scheduler, notes=(*system.notes, _NO_CACHED_STATES))
    system = _with_graphs(_priced(system, graph_tokens(config)), graph_tokens(config), is_padded=engine.pads_decodes)
    system = _with_exchange(system, engine.all2all_backend)
    if drafter is not None:
        own = _drafting(system, drafter)
        system = replace(system, drafter=own, notes=(*system.notes, *own.notes))
    if config.speculation.kind != "none":
        system = replace(system, notes=(*system.notes, accepted_from(config.speculation)))
    return _calibrated(system, config)


def pool_of(config: RunConfig) -> KVPool:
    """The KV pool of one rank; raises ConfigError where the model does not fit on the device."""
    stage = largest_stage(_served_model(config), config.pipeline_parallel_size)
    return kv_pool(config, stage, _drafter_shape(config), device_rates(config.device))


def _served_model(config: RunConfig) -> Model:
    model = model_shape(config.model, config.weight_format, config.kv_cache_dtype)
    return model.with_experts_on(config.num_expert_ranks)


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


def _plain(options: SchedulerOptions) -> SchedulerOptions:
    """The scheduler's options without the configuration's own type."""
    return SchedulerOptions(**{field.name: getattr(options, field.name) for field in fields(SchedulerOptions)})


def _drafter_shape(config: RunConfig) -> Model | None:
    """The model that drafts, with weights of its own format."""
    drafter = getattr(config.speculation, "drafter", None)
    if drafter is None:
        return None
    kv_dtype = config.engine.kv_cache_dtype
    return model_shape(drafter, drafter.quantization, drafter.kv_cache_dtype if kv_dtype == "auto" else kv_dtype)


def _cost_choice(config: RunConfig) -> CostChoice:
    match config.cost:
        case ProfiledCost() as cost:
            name, *kernels = cost.profile.split("+") if _comes_along(cost.profile) else (cost.profile,)
            assert isinstance(config.engine, SimEngine)
            by_version = vllm_version(config.engine.vllm_version).kernels
            chosen = tuple(kernels) or by_version if name == AUTO else ()
            return CostChoice("profiled", cost.profile, cost.statistic, kernels=chosen)
        case CustomCost() as cost:
            return CostChoice("custom", cost.target, make=maker_of(cost))
    return CostChoice(config.cost.kind)


def _priced(system: System, max_graph_tokens: int | None = None) -> System:
    """`system` with its profile, if profiles price it; with `profile=auto` and none in the project, priced by the
    roofline instead."""
    if system.cost.kind == "profiled":
        with _errors_of(system.cost):
            system = _with_profile(system, max_graph_tokens)
    elif system.cost.kind in ("roofline", "linear"):
        _check_arithmetic(system)
    try:
        system.constants()
    except ValueError as error:
        raise ConfigError(f"device={system.device.name}: {error}") from None
    return system


def _with_profile(system: System, max_graph_tokens: int | None) -> System:
    """Raises ProfileError: the profile cannot be used."""
    model, device, ranks = system.model, system.device, system.tensor_parallel_size
    if not _comes_along(system.cost.source):
        profile = open_profile(str(system.cost.source), model, ranks, system.max_num_seqs, device)
        check_fits(profile, model, ranks)
        check_units(profile, model, device)
        whole = _with_whole_experts(system, profile)
        if whole is None:
            raise ProfileError(f"has no times of experts that {model.num_expert_ranks} GPUs share out")
        return replace(system, profile=as_of_device(system, whole))
    kernels = system.cost.kernels
    found = profile_of(system, model, max_graph_tokens)
    if found is not None:
        if (found := _with_whole_experts(system, found)) is None:
            note = (
                f"no measured times of experts that {model.num_expert_ranks} GPUs share out come with the project: "
                "step times are from the roofline"
            )
            return replace(system, cost=CostChoice("roofline"), notes=(*system.notes, note))
        if system.cost.source != AUTO:
            _check_kernels(kernels, found)
        return replace(system, profile=found, notes=(*system.notes, *made_of(found)))
    plain = None
    if is_widened(model, device.flops) and (model.num_expert_ranks == 1 or system.data_parallel_size == 1):
        plain = profile_of(system, replace(model, quantization=NONE), max_graph_tokens)
    if plain is not None and (plain := _with_whole_experts(system, plain)) is not None:
        note = f"products of weights in {model.weight_format} are those measured in 16 bits, which read fewer bytes"
        return replace(system, profile=widened(plain, model, ranks), notes=(*system.notes, *made_of(plain), note))
    note = (
        f"no measured kernels of {model.name} in {model.weight_format} on {ranks} x {device.name} come with the "
        "project: step times are from the roofline of the device's rates"
    )
    _check_arithmetic(system)
    return replace(system, cost=CostChoice("roofline"), notes=(*system.notes, note))


def _with_graphs(system: System, largest: int | None, *, is_padded: bool) -> System:
    """`system`, whose times of NVIDIA's database are padded to the CUDA graphs of its engine, not to vLLM's."""
    profile, policy = system.profile, system.scheduler.policy
    if profile is None or policy not in ENGINES or "database" not in profile.meta.source:
        return system
    sizes = decode_graphs(policy, system.max_num_seqs, largest, is_padded=is_padded)
    return replace(system, profile=Profile(replace(profile.meta, token_buckets=sizes), profile.rows))


def _with_whole_experts(system: System, profile: Profile) -> Profile | None:
    """`profile`, or where GPUs share out whole experts that of such ranks; None if those were not timed."""
    ranks = system.model.num_expert_ranks
    return profile if ranks == 1 else with_whole_experts(profile, ranks, apart=system.data_parallel_size > 1)


def _with_exchange(system: System, backend: All2AllBackend) -> System:
    """`system`, whose ranks exchange tokens by the kernels of `backend`; raises ConfigError if these were not timed."""
    if backend == ALL_GATHER or system.data_parallel_size == 1:
        return system
    model, gpu, profile = system.model, system.device.aiconfigurator_system, system.profile
    if profile is None:
        raise ConfigError(f"engine.all2all_backend={backend}: needs times of measured kernels; this run has a roofline")
    from simulator.importers.aiconfigurator.shipped import shipped_exchange  # imported late, as it brings pandas

    found = None if gpu is None else shipped_exchange(gpu, model, backend)
    if found is None:
        raise ConfigError(
            f"engine.all2all_backend={backend}: was not timed on {model.num_expert_ranks} x {system.device.name} for "
            f"experts like those of {model.name}; use {ALL_GATHER}"
        )
    return replace(system, profile=Profile(profile.meta, {**profile.rows, "exchange": table_of(found)}))


def _comes_along(source: str | None) -> bool:
    """Whether `source` asks for the profile that comes with the project: auto, or auto+<kernel>."""
    return source is not None and source.partition("+")[0] == AUTO


def _check_kernels(kernels: tuple[str, ...], found: Profile) -> None:
    """Raise ProfileError for unknown kernels, and for those that a server is told to run and has no times of."""
    there = found.meta.source.get("server", ())
    for kernel in kernels:
        if kernel not in KERNELS:
            raise ProfileError(f"no kernel {kernel!r} (known: {', '.join(KERNELS)})")
        if kernel in OWN_CHOICES and kernel not in there:
            what = f"{found.meta.model} in {found.meta.source['quantization']}"
            raise ProfileError(f"{kernel}: has no times of {what} on this device")


@contextmanager
def _errors_of(cost: CostChoice) -> Iterator[None]:
    """Errors of the profile as errors of the configuration."""
    try:
        yield
    except ProfileError as error:
        raise ConfigError(f"cost.profile={cost.source!r}: {error}") from None


def _check_arithmetic(system: System) -> None:
    """Raise ConfigError where the cost model needs a rate that the device lacks; profiles have times instead."""
    try:
        for part in {weights.part for _, weights in system.model.matrices()}:
            system.model.format_of(part).products(system.model.dtype, system.device.flops, system.device.name)
    except UnsupportedQuantizationError as error:
        raise ConfigError(str(error)) from None


def _drafting(system: System, drafter: Model) -> System:
    """The system that prices the drafter: without the host's overhead, which counts once per step; by a profile only if
    one comes with the project, since another one is of the model that verifies."""
    device, scheduler = replace(system.device, step_overhead_s=0.0), SchedulerOptions(async_scheduling=True)
    own = replace(system, model=drafter, device=device, scheduler=scheduler, profile=None, notes=())
    if own.cost.kind == "profiled":
        comes_along = _comes_along(own.cost.source)
        own = replace(own, cost=replace(own.cost, source=AUTO) if comes_along else CostChoice("roofline"))
    return _priced(own)


def _calibrated(system: System, config: RunConfig) -> System:
    if config.cost.calibration is None:
        return system
    calibration = calibration_files.read(Path(config.cost.calibration))
    calibration_files.check(calibration, system.cost.kind, system.constants())
    if not config.cost.other_device:
        calibration_files.check_device(calibration, system.device.name)
    given = {"front_end_ms": config.frontend.latency_ms, "front_end_token_us": config.frontend.prompt_token_us}
    fitted = {name: value for name, value in calibration.constants.items() if given.get(name) is None}
    return replace(system.with_front_end(fitted), calibration=calibration)
