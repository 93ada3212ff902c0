"""What is simulated, as plain data: model, device, the limits and rules of a server, and what prices its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.core.kv.reserved.reservation import Contiguous
from engine.core.scheduler_options import SchedulerOptions
from simulator.acceptance import Speculation
from simulator.calibration import Calibration
from simulator.copies.tiers import Tiers
from simulator.costs import linear
from simulator.costs.constants import Constant, profiled_constants
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.profiled import ProfiledCost
from simulator.costs.roofline import RooflineCost
from simulator.costs.shared_reads import shared_reads_of
from simulator.device import Device
from simulator.models.kv_pool import KVPool
from simulator.models.model import Model
from simulator.profile.profile import Profile
from simulator.quantities import RANGES
from simulator.versions.front_end_times import FrontEndTimes

MakeCost = Callable[[Model, Device, int], CostModel]
"""Makes the cost model of a model on so many ranks of a device."""


@dataclass(frozen=True)
class CostChoice:
    """Which cost model prices the steps.

    Attributes:
        kind: its name.
        source: the profile, as it was asked for; or the function that makes a cost model of the user's own.
        statistic: whether profiled decode steps are priced at their mean, or all steps at their median.
        make: makes one of the user's own.
        kernels: what the server runs instead of vLLM's newest choice (`simulator.versions.vllm_versions`).
    """

    kind: Literal["roofline", "profiled", "linear", "custom"]
    source: str | None = None
    statistic: Literal["mean", "median"] | None = None
    make: MakeCost | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class System:
    """One server.

    Attributes:
        model, device: what serves on what.
        tensor_parallel_size: GPUs that share each layer.
        pipeline_parallel_size: stages that share out the layers.
        data_parallel_size: ranks that step together and share out the experts, of which this is one.
        block_size, max_num_seqs, max_num_batched_tokens, max_model_len: limits, as the scheduler takes them.
        scheduler: its options.
        pool: the KV blocks of one rank.
        cost: which cost model prices the steps.
        contiguous: how contiguous reservations are made; None where blocks are paged.
        tiers: the memories behind the device's.
        compress: whether decode steps without decisions are simulated at once.
        max_lookahead_steps: decode steps in a plan.
        speculation: what is drafted and accepted, None without speculation.
        draft_token_s: seconds that drafting a token takes for all sequences of a step.
        drafter: the system that drafts, None where drafting takes no model.
        profile: the measured times that price it, None without any.
        calibration: the fitted constants of the cost model, None without any.
        notes: what a reader of the results must know about the cost model.
        front_end: what requests cost before the engine sees them; None where clients call it directly.
    """

    model: Model
    device: Device
    tensor_parallel_size: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    scheduler: SchedulerOptions
    pool: KVPool
    cost: CostChoice
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    contiguous: Contiguous | None = None
    tiers: Tiers = Tiers()
    compress: bool = True
    max_lookahead_steps: int = 1
    speculation: Speculation | None = None
    draft_token_s: float = 0.0
    drafter: System | None = None
    profile: Profile | None = None
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()
    front_end: FrontEndTimes | None = None

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block on all ranks."""
        return self.pool.block_bytes * self.num_gpus

    @property
    def names_outputs(self) -> bool:
        """Whether generated blocks are known by an identity, though nobody shares them: memories behind the device keep
        them, and some rules of eviction rank them. The other pools let blocks of unknown content take their turn.

        Stores that servers share keep what prompts computed only, as LMCache does by default (`save_decode_cache`).
        """
        keeps_outputs = self.tiers.offload is not None and self.tiers.store is None
        return keeps_outputs or self.scheduler.eviction not in ("unhashed_first", "lru")

    def fitted_for(self) -> dict[str, Any]:
        """What the fitted constants of a cost model hold for."""
        return {
            "model": self.model.name,
            "quantization": self.model.quantization.name,
            "device": self.device.name,
            "profile": self.cost.source if self.cost.kind == "profiled" else None,
            "statistic": self.cost.statistic,
            "tensor_parallel_size": self.tensor_parallel_size,
        }

    def constants(self) -> dict[str, Constant]:
        """The constants of cost model and front end that can be fitted, by name, with their defaults in this system.

        Those of `roofline` are the keys of the device that its datasheet does not state. Without tensor parallelism,
        the constants of communication have no effect and are left out. A fit stays within the range of a constant.

        Raises:
            ValueError: model and device are so far apart that a default is out of its range.
        """
        front = self.front_end or FrontEndTimes()
        constants = self._constants() | {
            "front_end_ms": Constant(front.latency_ns / 1e6, 0.0, 1e3, 20.0),
            "front_end_token_us": Constant(front.prompt_token_ns / 1e3, 0.0, 1e3, 20.0),
        }
        for name, constant in constants.items():
            if not RANGES[name].holds(constant.default):
                raise ValueError(
                    f"{name} would be {constant.default:.3g} for {self.model.name}: must be {RANGES[name]}"
                )
        return {name: each._replace(high=min(each.high, RANGES[name].high)) for name, each in constants.items()}

    def _constants(self) -> dict[str, Constant]:
        device, ranks = self.device, self.tensor_parallel_size
        match self.cost.kind:
            case "profiled":
                return profiled_constants(device, ranks, async_scheduling=self.scheduler.async_scheduling)
            case "custom":
                return {}
            case "linear":
                return linear.constants(self.model, device, ranks)
        constants = {
            "memory_efficiency": Constant(device.memory_efficiency, 0.05, 1.0),
            "flops_efficiency": Constant(device.flops_efficiency, 0.05, 1.0),
            "step_overhead_s": Constant(device.step_overhead_s, 0.0, 0.02),
        }
        if ranks > 1:
            constants["link_latency_s"] = Constant(device.link_latency_s, 0.0, 0.002)
        return constants

    def with_front_end(self, fitted: Mapping[str, float]) -> System:
        """This system with the constants of a front end that are among `fitted`."""
        if not {"front_end_ms", "front_end_token_us"} & fitted.keys():
            return self
        return replace(self, front_end=(self.front_end or FrontEndTimes()).fitted(fitted))

    def cost_model(self, constants: Mapping[str, float] | None = None) -> CostModel:
        """A new cost model with these `constants`, by default those of the calibration, and defaults for the rest.

        Raises:
            ProfileError: the profile is of another system.
        """
        if constants is None:
            constants = self.calibration.constants if self.calibration else {}
        model = self._plain_cost_model(constants)
        if self.speculation is None or not (self.drafter or self.draft_token_s):
            return model
        drafter = self.drafter._plain_cost_model({}) if self.drafter else None
        return DraftingCost(model, self.speculation.num_drafts, drafter, round(self.draft_token_s * 1e9))

    def _plain_cost_model(self, constants: Mapping[str, float]) -> CostModel:
        cost, ranks = self.cost, self.tensor_parallel_size
        if cost.make is not None:
            return cost.make(self.model, self.device, ranks)
        values = {name: constants.get(name, constant.default) for name, constant in self._constants().items()}
        if cost.kind == "linear":
            return linear.LinearCost(values, pads_prompts=self.scheduler.max_padding is not None)
        if cost.kind == "roofline":
            rates: dict[str, Any] = values
            return RooflineCost(self.model, replace(self.device, **rates), ranks)
        assert self.profile is not None
        is_async, of_means = self.scheduler.async_scheduling, cost.statistic == "mean"
        kv_reads = self.model.kv_reads(self.device, ranks)
        return ProfiledCost(
            self.profile, self.model, ranks, values, of_means=of_means, is_async=is_async, kv_reads=kv_reads,
            shared_reads=shared_reads_of(self.profile, self.model, self.device, ranks),
        )  # fmt: skip

    def step_times_from(self) -> str:
        """Where the times of steps come from, in one line."""
        fit = f", constants of {self.calibration.path}" if self.calibration else ""
        if self.cost.kind == "custom":
            return f"step times: {self.cost.source}"
        if self.profile is None:
            what = "roofline of the device's rates" if self.cost.kind == "roofline" else "four constants"
            return f"step times: cost={self.cost.kind}, {what}{fit}"
        source, meta = self.profile.meta.source, self.profile.meta
        tool = source.get("database") and f", {source['tool']} {source['database']}"
        kernels = "".join(f"+{kernel}" for kernel in source.get("server", ()))
        scaled = f", scaled from those on {source['scaled_from']}" if "scaled_from" in source else ""
        return f"step times: measured kernels of {meta.model} on {meta.device}{scaled}{tool or ''}{kernels}{fit}"
