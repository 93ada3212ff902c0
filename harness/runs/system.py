"""The serving system that a configuration describes, resolved once into the types that the simulator takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.core.kv.contiguous import Contiguous
from engine.core.scheduler_options import SchedulerOptions
from harness.config import (
    CostConfig,
    CustomCost,
    ProfiledCost,
    RunConfig,
    SimEngine,
    TiersConfig,
)
from harness.config.system import AUTO
from harness.config.system import RooflineCost as RooflineConfig
from harness.errors import ConfigError
from harness.runs import fitted
from harness.runs.custom_cost import custom_cost
from harness.runs.fitted import Calibration
from harness.runs.pool import kv_pool
from harness.runs.shapes import contiguous_rule, device_rates, model_shape
from harness.runs.speculation import accepted_from, resolve_speculation
from simulator.costs import linear, profiled
from simulator.costs.constants import Constant, profiled_constants
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.roofline import RooflineCost
from simulator.hardware import Device, ModelShape
from simulator.importers import open_profile
from simulator.memory import KVPool
from simulator.profile.archive import find_profile
from simulator.profile.checks import check_units
from simulator.profile.profile import Profile, ProfileError
from simulator.quantities import RANGES
from simulator.quantization import UnsupportedQuantizationError
from simulator.speculation import Speculation


@dataclass(frozen=True, eq=False)
class System:
    """What is simulated.

    Attributes:
        model, device: as the simulator sees them.
        tensor_parallel_size: GPUs that share the model.
        block_size, max_num_seqs, max_num_batched_tokens, max_model_len: limits, as the scheduler takes them.
        scheduler: its options.
        pool: the KV blocks of one rank.
        contiguous: how contiguous reservations are made; None where blocks are paged.
        tiers: the memories behind the device's.
        engine: settings of the simulation itself.
        cost: which cost model prices the steps.
        speculation: what is drafted and accepted, None without speculation.
        draft_token_s: seconds that drafting a token takes for all sequences of a step.
        drafter: the system that drafts, None where drafting takes no model.
        profile: the measured times for it, None without any.
        calibration: the fitted constants of that cost model, None without any.
        notes: what a reader of the results must know about the cost model.
    """

    model: ModelShape
    device: Device
    tensor_parallel_size: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    scheduler: SchedulerOptions
    pool: KVPool
    contiguous: Contiguous | None
    tiers: TiersConfig
    engine: SimEngine
    cost: CostConfig
    speculation: Speculation | None = None
    draft_token_s: float = 0.0
    drafter: System | None = None
    profile: Profile | None = None
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()

    def fitted_for(self) -> dict[str, Any]:
        """What the fitted constants of a cost model hold for."""
        return {
            "model": self.model.name,
            "quantization": self.model.quantization.name,
            "device": self.device.name,
            "profile": getattr(self.cost, "profile", None),
            "statistic": getattr(self.cost, "statistic", None),
            "tensor_parallel_size": self.tensor_parallel_size,
        }

    def constants(self) -> dict[str, Constant]:
        """The constants of the cost model that can be fitted, by name, with their defaults in this system.

        Those of `roofline` are the keys of the device that its datasheet does not state. Without tensor parallelism,
        the constants of communication have no effect and are left out. A fit stays within the range of a constant.

        Raises:
            ConfigError: model and device are so far apart that a default is out of its range.
        """
        constants = self._constants()
        for name, constant in constants.items():
            if not RANGES[name].holds(constant.default):
                raise ConfigError(
                    f"device={self.device.name}: {name} would be {constant.default:.3g} for {self.model.name}: must be "
                    f"{RANGES[name]}"
                )
        return {name: each._replace(high=min(each.high, RANGES[name].high)) for name, each in constants.items()}

    def _constants(self) -> dict[str, Constant]:
        device, ranks = self.device, self.tensor_parallel_size
        if self.cost.kind == "profiled":
            return profiled_constants(device, ranks, async_scheduling=self.scheduler.async_scheduling)
        if self.cost.kind == "custom":
            return {}
        if self.cost.kind == "linear":
            return linear.constants(self.model, device, ranks)
        constants = {
            "memory_efficiency": Constant(device.memory_efficiency, 0.05, 1.0),
            "flops_efficiency": Constant(device.flops_efficiency, 0.05, 1.0),
            "step_overhead_s": Constant(device.step_overhead_s, 0.0, 0.02),
        }
        if ranks > 1:
            constants["link_latency_s"] = Constant(device.link_latency_s, 0.0, 0.002)
        return constants

    def cost_model(self, constants: Mapping[str, float] | None = None) -> CostModel:
        """A new cost model with these `constants`, by default those of the calibration, and defaults for the rest.

        Raises:
            ConfigError: the profile cannot be used.
        """
        if constants is None:
            constants = self.calibration.constants if self.calibration else {}
        model = self._plain_cost_model(constants)
        if self.speculation is None or not (self.drafter or self.draft_token_s):
            return model
        drafter = self.drafter._plain_cost_model({}) if self.drafter else None
        return DraftingCost(model, self.speculation.num_drafts, drafter, round(self.draft_token_s * 1e9))

    def _plain_cost_model(self, constants: Mapping[str, float]) -> CostModel:
        values = {name: constant.default for name, constant in self.constants().items()} | dict(constants)
        if self.cost.kind == "profiled":
            return self._profiled_cost(self.cost, values)
        if isinstance(self.cost, CustomCost):
            return custom_cost(self.cost, self.model, self.device, self.tensor_parallel_size)
        if self.cost.kind == "linear":
            return linear.LinearCost(values, pads_prompts=self.scheduler.max_padding is not None)
        rates: dict[str, Any] = values
        return RooflineCost(self.model, replace(self.device, **rates), self.tensor_parallel_size)

    def step_times_from(self) -> str:
        """Where the times of steps come from, in one line."""
        fit = f", constants of {self.calibration.path}" if self.calibration else ""
        if isinstance(self.cost, CustomCost):
            return f"step times: {self.cost.target}"
        if self.profile is None:
            what = "roofline of the device's rates" if self.cost.kind == "roofline" else "four constants"
            return f"step times: cost={self.cost.kind}, {what}{fit}"
        source, meta = self.profile.meta.source, self.profile.meta
        tool = source.get("database") and f", {source['tool']} {source['database']}"
        return f"step times: measured kernels of {meta.model} on {meta.device}{tool or ''}{fit}"

    def _profiled_cost(self, cost: ProfiledCost, values: Mapping[str, float]) -> profiled.ProfiledCost:
        assert self.profile is not None, "`resolve` opens it"
        of_means = cost.statistic == "mean"
        with _errors_of(cost):
            model = profiled.ProfiledCost(
                self.profile,
                self.model,
                self.tensor_parallel_size,
                values,
                of_means=of_means,
                is_async=self.scheduler.async_scheduling,
            )
            check_units(self.profile, self.model, self.device)
        return model


@contextmanager
def _errors_of(cost: ProfiledCost) -> Iterator[None]:
    """Errors of the profile as errors of the configuration."""
    try:
        yield
    except ProfileError as error:
        raise ConfigError(f"cost.profile={cost.profile!r}: {error}") from None


def resolve(config: RunConfig) -> System:
    """The system that `config` simulates; its profile and its calibration file are read here.

    Raises:
        ConfigError: the model does not fit on the device, the device has no arithmetic for its weights, or the profile
            or the calibration file cannot be used.
    """
    assert isinstance(config.engine, SimEngine), "the other engines are measured"
    model = model_shape(config.model, config.weight_format, config.engine.kv_cache_dtype)
    drafter = _drafter_shape(config)
    device = device_rates(config.device)
    system = System(
        model=model,
        device=device,
        tensor_parallel_size=config.tensor_parallel_size,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or config.model.max_position_embeddings,
        scheduler=config.scheduler,
        pool=kv_pool(config, model, drafter, device),
        contiguous=contiguous_rule(config),
        tiers=config.tiers,
        engine=config.engine,
        cost=config.cost,
        speculation=resolve_speculation(config.speculation, config.seed),
        draft_token_s=getattr(config.speculation, "draft_token_s", 0.0),
    )
    system = _with_profile(system)
    _check_arithmetic(system)
    if drafter is not None:
        own = _drafting(system, drafter)
        system = replace(system, drafter=own, notes=(*system.notes, *own.notes))
    if config.speculation.kind != "none":
        system = replace(system, notes=(*system.notes, accepted_from(config.speculation)))
    if config.cost.calibration is None:
        return system
    calibration = fitted.read(Path(config.cost.calibration))
    calibration.check(system.cost.kind, system.constants())
    if not config.cost.other_device:
        calibration.check_device(system.device.name)
    return replace(system, calibration=calibration)


def _drafter_shape(config: RunConfig) -> ModelShape | None:
    """The model that drafts, with weights of its own format."""
    drafter = getattr(config.speculation, "drafter", None)
    return None if drafter is None else model_shape(drafter, drafter.quantization, config.engine.kv_cache_dtype)


def _drafting(system: System, drafter: ModelShape) -> System:
    """The system that prices the drafter: without the host's overhead, which counts once per step; by a profile only if
    one comes with the project, since another one is of the model that verifies."""
    device, scheduler = replace(system.device, step_overhead_s=0.0), SchedulerOptions(async_scheduling=True)
    own = replace(system, model=drafter, device=device, scheduler=scheduler, profile=None, notes=())
    if own.cost.kind == "profiled":
        cost = own.cost if own.cost.profile == AUTO else RooflineConfig()
        own = _with_profile(replace(own, cost=cost))
    _check_arithmetic(own)
    return own


def _with_profile(system: System) -> System:
    """`system` with its profile, if profiles price it; with `profile=auto` and none in the project, priced by the
    roofline instead."""
    cost = system.cost
    if not isinstance(cost, ProfiledCost):
        return system
    model, device, ranks = system.model, system.device, system.tensor_parallel_size
    with _errors_of(cost):
        if cost.profile != AUTO:
            profile = open_profile(cost.profile, model, ranks, system.max_num_seqs, device)
            return replace(system, profile=profile)
        gpu = device.aiconfigurator_system
        found = find_profile(gpu, model, ranks, system.max_num_seqs) if gpu else None
    if found is not None:
        return replace(system, profile=found)
    note = (
        f"no measured kernels of {model.name} in {model.weight_format} on {ranks} x {device.name} come with the "
        "project: step times are from the roofline of the device's rates"
    )
    return replace(system, cost=RooflineConfig(), notes=(note,))


def _check_arithmetic(system: System) -> None:
    """Raise ConfigError where the cost model needs a rate that the device lacks; profiles have times instead."""
    if system.cost.kind in ("profiled", "custom"):
        return
    try:
        for quantization in (system.model.attention_quantization, system.model.quantization):
            quantization.products(system.model.dtype, system.device.flops, system.device.name)
    except UnsupportedQuantizationError as error:
        raise ConfigError(str(error)) from None
