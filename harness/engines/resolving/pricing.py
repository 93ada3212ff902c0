"""What prices the steps of a system: a profile of its own, kernels that come with the project, or a roofline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.core.scheduler_options import SchedulerOptions
from harness.config import CustomCost, ProfiledCost, RunConfig, SimEngine
from harness.config.schema.system import ALL_GATHER, AUTO, All2AllBackend
from harness.engines.resolving import calibration_files
from harness.engines.resolving.custom_cost import maker_of
from harness.errors import ConfigError
from simulator.device import Device
from simulator.importers import open_profile
from simulator.models.model import Model
from simulator.models.weight_formats import NONE, UnsupportedQuantizationError
from simulator.profile.archive import find_profile
from simulator.profile.checks import check_fits, check_units
from simulator.profile.graph_sizes import ENGINES, decode_graphs
from simulator.profile.other_device import on_device
from simulator.profile.profile import LIKE_EXPERTS, Profile, ProfileError
from simulator.profile.weight_only import is_widened, widened
from simulator.profile.whole_experts import with_whole_experts
from simulator.system import CostChoice, System
from simulator.table import table_of
from simulator.versions.vllm_versions import KERNELS, OWN_CHOICES, vllm_version

_LIKE_EXPERTS = "experts of these sizes were not timed: the times are of those most like them, scaled by their weights"


def cost_choice(config: RunConfig) -> CostChoice:
    """The cost model that `config` asks for."""
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


def priced(system: System, config: RunConfig, drafter: Model | None, max_graph_tokens: int | None) -> System:
    """`system` with the times that its cost model takes, with the system of its drafter, and calibrated.

    Raises:
        ConfigError: the device has no arithmetic for the weights, or a profile or the calibration file cannot be used.
    """
    assert isinstance(config.engine, SimEngine)
    system = _with_graphs(_timed(system, max_graph_tokens), max_graph_tokens, is_padded=config.engine.pads_decodes)
    system = _with_exchange(system, config.engine.all2all_backend)
    if drafter is not None:
        own = _drafting(system, drafter)
        system = replace(system, drafter=own, notes=(*system.notes, *own.notes))
    return _calibrated(system, config)


def _timed(system: System, max_graph_tokens: int | None = None) -> System:
    """`system` with its profile, if profiles price it; with `profile=auto` and none in the project, priced by the
    roofline instead."""
    if system.cost.kind == "profiled":
        try:
            system = _with_profile(system, max_graph_tokens)
        except ProfileError as error:
            raise ConfigError(f"cost.profile={system.cost.source!r}: {error}") from None
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
        return replace(system, profile=_as_of_device(system, whole))
    kernels = system.cost.kernels
    found = _profile_of(system, model, max_graph_tokens)
    if found is not None:
        if (found := _with_whole_experts(system, found)) is None:
            note = (
                f"no measured times of experts that {model.num_expert_ranks} GPUs share out come with the project: "
                "step times are from the roofline"
            )
            return replace(system, cost=CostChoice("roofline"), notes=(*system.notes, note))
        if system.cost.source != AUTO:
            _check_kernels(kernels, found)
        return replace(system, profile=found, notes=(*system.notes, *_made_of(found)))
    plain = None
    if is_widened(model, device.flops) and (model.num_expert_ranks == 1 or system.data_parallel_size == 1):
        plain = _profile_of(system, replace(model, quantization=NONE), max_graph_tokens)
    if plain is not None and (plain := _with_whole_experts(system, plain)) is not None:
        note = f"products of weights in {model.weight_format} are those measured in 16 bits, which read fewer bytes"
        return replace(system, profile=widened(plain, model, ranks), notes=(*system.notes, *_made_of(plain), note))
    note = (
        f"no measured kernels of {model.name} in {model.weight_format} on {ranks} x {device.name} come with the "
        "project: step times are from the roofline of the device's rates"
    )
    _check_arithmetic(system)
    return replace(system, cost=CostChoice("roofline"), notes=(*system.notes, note))


def _profile_of(system: System, model: Model, max_graph_tokens: int | None) -> Profile | None:
    """The profile of `model` that comes with the project, or else is compiled from the operator times that do."""
    device, ranks, kernels = system.device, system.tensor_parallel_size, system.cost.kernels

    def timed_on(gpu: Device) -> Profile | None:
        if gpu.aiconfigurator_system is None:
            return None
        where, how = (gpu.aiconfigurator_system, model, ranks, system.max_num_seqs), (kernels, max_graph_tokens)
        if (found := find_profile(*where, *how)) is not None:
            return found
        from simulator.importers.aiconfigurator.shipped import compiled_profile  # imported late, as it brings pandas

        return compiled_profile(*where, gpu, *how)

    if found := timed_on(device):
        return found
    alike = device.kernels_like and timed_on(device.kernels_like)
    return on_device(alike, model, ranks, device.kernels_like, device) if alike else None


def _as_of_device(system: System, profile: Profile) -> Profile:
    """A user's `profile`, scaled if it is of the GPU that stands in for that of the run in NVIDIA's database."""
    device, like = system.device, system.device.kernels_like
    measured_on = str(profile.meta.source.get("database", "")).partition("/")[0]
    if like is None or measured_on in ("", device.aiconfigurator_system) or measured_on != like.aiconfigurator_system:
        return profile
    return on_device(profile, system.model, system.tensor_parallel_size, like, device) or profile


def _with_whole_experts(system: System, profile: Profile) -> Profile | None:
    """`profile`, or that of ranks with whole experts where GPUs share them out so; None if these were not timed."""
    ranks = system.model.num_expert_ranks
    return profile if ranks == 1 else with_whole_experts(profile, ranks, apart=system.data_parallel_size > 1)


def _made_of(profile: Profile) -> Iterator[str]:
    """Notes on times that were measured of something else."""
    source = profile.meta.source
    if LIKE_EXPERTS in source.get("server", ()):
        yield _LIKE_EXPERTS
    if timed := source.get("scaled_from"):
        yield f"kernels were not timed on this device: the times are those of {timed}, scaled by the rates of both"


def _with_graphs(system: System, largest: int | None, *, is_padded: bool) -> System:
    """`system`, whose times of NVIDIA's database are padded to the CUDA graphs of its engine, not to vLLM's."""
    profile, policy = system.profile, system.scheduler.policy
    if profile is None or policy not in ENGINES or "database" not in profile.meta.source:
        return system
    sizes = decode_graphs(policy, system.max_num_seqs, largest, is_padded=is_padded)
    return replace(system, profile=Profile(replace(profile.meta, token_buckets=sizes), profile.rows))


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


def _check_arithmetic(system: System) -> None:
    """Raise ConfigError where the cost model needs a rate that the device lacks; profiles have times instead."""
    try:
        system.model.check_arithmetic(system.device)
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
    return _timed(own)


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
