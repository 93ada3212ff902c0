"""The configuration of one run: the groups, the top-level keys, and what must hold between them."""

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from engine.core.kv.reservation import FORESEEING
from engine.core.scheduler_options import conflict_with_drafts, conflict_with_reservations
from engine.engine_config import KVDtype, conflict_with_pages, default_block_size
from harness.config.schema.allocator import AllocatorConfig, ContiguousAllocator, PagedAllocator
from harness.config.schema.arrivals import ArrivalConfig
from harness.config.schema.base import ConfigModel, Fraction, NonNegativeFloat, Text, within
from harness.config.schema.changes import AutoscalerConfig, FailureConfig, check_changes
from harness.config.schema.endpoint import OpenAIEngine
from harness.config.schema.fleet import (
    AlikeFleet,
    FleetConfig,
    FrontEndConfig,
    NetworkConfig,
    RouterConfig,
    check_pools,
    check_ranks,
    check_stages,
    check_whole_experts,
)
from harness.config.schema.metrics import MetricsConfig, SloConfig
from harness.config.schema.model import ModelConfig, WeightFormat
from harness.config.schema.speculation import NoSpeculation, SpeculationConfig, check_fits
from harness.config.schema.system import (
    CostConfig,
    DeviceConfig,
    EngineConfig,
    RealEngineConfig,
    SchedulerConfig,
)
from harness.config.schema.tasks.capacity import CapacityConfig, SearchConfig
from harness.config.schema.tasks.needs import Task, check_measured, check_profile, check_searches, check_serving
from harness.config.schema.tasks.plotting import PlotConfig, ReportConfig
from harness.config.schema.tasks.profiling import ProfileConfig
from harness.config.schema.tasks.serving import ServeConfig
from harness.config.schema.tasks.validation import CalibrationConfig, ObserveConfig, ValidationConfig
from harness.config.schema.tiers import TiersConfig, check_offload
from harness.config.schema.workload import TraceConfig

_REAL_FORMATS = ("none", "fp8", "fp8_block")


class RunConfig(ConfigModel):
    """Everything that decides the outcome of a run. `num_blocks=None` derives the pool from `kv_cache_memory_bytes`, or
    without them from the device's memory; `max_model_len=None` takes the model's own limit and `quantization=None` the
    model's own format; `results` are the folders that `task=report` compares and `task=plot` draws."""

    task: Task = "run"
    engine: EngineConfig
    trace: TraceConfig
    arrival: ArrivalConfig
    model: ModelConfig
    quantization: WeightFormat | None = None
    device: DeviceConfig
    scheduler: SchedulerConfig
    cost: CostConfig
    metrics: MetricsConfig
    allocator: AllocatorConfig = Field(default_factory=PagedAllocator)
    speculation: SpeculationConfig = Field(default_factory=NoSpeculation)
    tiers: TiersConfig = Field(default_factory=TiersConfig)
    block_size: Annotated[int, within("block_size")] = 16
    max_num_seqs: Annotated[int, within("max_num_seqs")] = 256
    max_num_batched_tokens: Annotated[int, within("max_num_batched_tokens")] = 8192
    max_model_len: Annotated[int, within("max_model_len")] | None = None
    router: RouterConfig = Field(default_factory=RouterConfig)
    fleet: FleetConfig = Field(default_factory=AlikeFleet)
    failures: Annotated[tuple[FailureConfig, ...], Field(strict=False)] = ()
    retry_failed: bool = True
    autoscaler: AutoscalerConfig = Field(default_factory=AutoscalerConfig)
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    frontend: FrontEndConfig = Field(default_factory=FrontEndConfig)
    tensor_parallel_size: Annotated[int, within("tensor_parallel_size")] = 1
    pipeline_parallel_size: Annotated[int, within("pipeline_parallel_size")] = 1
    data_parallel_size: Annotated[int, within("replicas")] = 1
    expert_parallel: bool = False
    replicas: Annotated[int, within("replicas")] = 1
    gpu_memory_utilization: Fraction = 0.9
    kv_cache_memory_bytes: Annotated[int, within("memory_bytes")] | None = None
    num_blocks: Annotated[int, within("num_blocks")] | None = None
    seed: Annotated[int, within("seed")] = 0
    progress: bool = True
    verbose: bool = False
    plots: bool = True
    figures: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    perfetto: bool = False
    perfetto_window: Annotated[tuple[NonNegativeFloat, ...], Field(strict=False)] | None = None
    results: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    plot: PlotConfig = Field(default_factory=PlotConfig)
    report: ReportConfig = Field(default_factory=ReportConfig)
    profile: ProfileConfig = Field(default_factory=ProfileConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    calibration: CalibrationConfig = Field(default_factory=CalibrationConfig)
    observe: ObserveConfig = Field(default_factory=ObserveConfig)
    capacity: CapacityConfig = Field(default_factory=CapacityConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)

    @property
    def num_gpus(self) -> int:
        """GPUs of all servers."""
        own = self.pipeline_parallel_size, self.tensor_parallel_size
        if isinstance(self.fleet, AlikeFleet):
            return self.num_servers * own[0] * own[1]
        return sum(
            pool.replicas * (pool.pipeline_parallel_size or own[0]) * (pool.tensor_parallel_size or own[1])
            for pool in self.fleet.pools
        )

    @property
    def num_servers(self) -> int:
        """Servers that requests are spread over, at most: with data-parallel ranks, each of these."""
        if isinstance(self.fleet, AlikeFleet):
            return max(self.replicas, self.autoscaler.most * self.autoscaler.is_on) * self.data_parallel_size
        return sum(each.replicas for each in self.fleet.pools)

    @property
    def num_expert_ranks(self) -> int:
        """GPUs that share out whole experts; 1 where each has a part of every expert."""
        return self.data_parallel_size * self.tensor_parallel_size if self.expert_parallel else 1

    @property
    def is_apart(self) -> bool:
        """Whether prompts have servers of their own."""
        return not isinstance(self.fleet, AlikeFleet) and self.fleet.pools[0].role != "serve"

    @property
    def weight_format(self) -> WeightFormat:
        """The format of the weights of attention and MLPs."""
        return self.quantization or self.model.quantization

    @property
    def kv_cache_dtype(self) -> KVDtype:
        """The format of the KV cache: as asked for, or else that of the model."""
        return self.model.kv_cache_dtype if self.engine.kv_cache_dtype == "auto" else self.engine.kv_cache_dtype

    @field_validator("frontend", mode="after")
    @classmethod
    def _check_front_end(cls, value: FrontEndConfig, info: ValidationInfo) -> FrontEndConfig:
        """That of a server which is simulated, or observed: clients of the real engine in this process call it
        directly, and task=serve is a front end."""
        kind = getattr(info.data.get("engine"), "kind", "sim")
        if kind not in ("gpu", "cpu") and info.data.get("task") != "serve":
            return value
        if value != FrontEndConfig(kind=value.kind):
            without = "task=serve" if info.data.get("task") == "serve" else f"engine={kind}"
            raise ValueError(f"kind={value.kind}: in simulation only; leave out what is given of it with {without}")
        return FrontEndConfig()

    @field_validator("block_size", mode="before")
    @classmethod
    def _choose_block_size(cls, value: object, info: ValidationInfo) -> object:
        backend = getattr(info.data.get("engine"), "attention_backend", "auto")
        return default_block_size(backend) if value is None else value

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: must be >= max_num_seqs={self.max_num_seqs}, "
                "so that every running sequence can take part in a step"
            )
        limit = self.model.max_position_embeddings
        if self.max_model_len is not None and self.max_model_len > limit:
            raise ValueError(
                f"max_model_len={self.max_model_len}: must be <= {limit}, model.max_position_embeddings "
                f"of {self.model.name}"
            )
        return self

    @model_validator(mode="after")
    def _check_pages(self) -> Self:
        if isinstance(self.engine, RealEngineConfig) and (
            conflict := conflict_with_pages(self.engine.attention_backend, self.block_size)
        ):
            raise ValueError(conflict)
        return self

    @model_validator(mode="after")
    def _check_kv_bytes(self) -> Self:
        if self.kv_cache_memory_bytes is None:
            return self
        if isinstance(self.engine, RealEngineConfig):
            raise ValueError(f"kv_cache_memory_bytes={self.kv_cache_memory_bytes}: in simulation only; give num_blocks")
        if self.num_blocks is not None:
            raise ValueError(f"kv_cache_memory_bytes={self.kv_cache_memory_bytes}: give it or num_blocks, not both")
        return self

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        window = self.perfetto_window
        if window is not None and not (len(window) == 2 and window[0] < window[1]):
            raise ValueError(f"perfetto_window={list(window)}: must be two times in s, [from, to], the first smaller")
        if window is not None and not self.perfetto:
            raise ValueError(f"perfetto_window={list(window)}: read with perfetto=true only")
        if self.perfetto and isinstance(self.engine, OpenAIEngine):
            raise ValueError("perfetto=true: engine=openai sees no steps of the server")
        return self

    @model_validator(mode="after")
    def _check_scheduler(self) -> Self:
        if self.num_blocks is not None and self.num_blocks <= self.scheduler.reserved_blocks:
            raise ValueError(
                f"num_blocks={self.num_blocks}: must be > {self.scheduler.reserved_blocks}, scheduler.reserved_blocks"
            )
        if self.scheduler.async_scheduling and self.engine.max_lookahead_steps > 1:
            raise ValueError(
                f"engine.max_lookahead_steps={self.engine.max_lookahead_steps}: must be 1 with "
                "scheduler.async_scheduling=true, which plans each step on its own"
            )
        return self

    @model_validator(mode="after")
    def _check_allocator(self) -> Self:
        if self.speculation.kind != "none" and (drafts := conflict_with_drafts(self.scheduler)):
            raise ValueError(f"scheduler.{drafts}")
        if not isinstance(self.allocator, ContiguousAllocator):
            return self
        if conflict := conflict_with_reservations(self.scheduler):
            raise ValueError(f"scheduler.{conflict}, or allocator=paged")
        if self.trace.n > 1:
            raise ValueError(
                f"trace.n={self.trace.n}: the sequences of a request share the blocks of its prompt, and contiguous "
                "reservations share none; use allocator=paged"
            )
        if self.tiers.is_on:
            name = "host" if self.tiers.host.gib else "store"
            raise ValueError(
                f"tiers.{name}.gib={getattr(self.tiers, name).gib:g}: contiguous reservations stay on the device; use "
                "tiers=none or allocator=paged"
            )
        if self.allocator.reserve in FORESEEING and self.engine.kind != "sim":
            raise ValueError(
                f"allocator.reserve={self.allocator.reserve}: engine={self.engine.kind} does not know what a request "
                "will generate; use engine=sim, allocator=contiguous_requested or allocator=contiguous_max"
            )
        return self

    @model_validator(mode="after")
    def _check_radix_tree(self) -> Self:
        if self.scheduler.eviction != "radix":
            return self
        wrong = {
            f"scheduler.async_scheduling=true with engine={self.engine.kind}": isinstance(self.engine, RealEngineConfig)
            and self.scheduler.async_scheduling,
            f"speculation={self.speculation.kind}": self.speculation.kind != "none",
            f"tiers.host.gib={self.tiers.host.gib:g}": self.tiers.host.gib > 0,
            f"tiers.store.gib={self.tiers.store.gib:g}": self.tiers.store.gib > 0,
            f"pipeline_parallel_size={self.pipeline_parallel_size}": self.pipeline_parallel_size > 1,
            f"trace.n={self.trace.n}": self.trace.n > 1,
            "fleet: prompts on servers of their own": self.is_apart,
            f"block_size={self.block_size} above max_num_batched_tokens={self.max_num_batched_tokens}": self.block_size
            > self.max_num_batched_tokens,
        }
        for name, is_so in wrong.items():
            if is_so:
                raise ValueError(f"{name}: not with scheduler=sglang")
        return self

    @model_validator(mode="after")
    def _check_offload(self) -> Self:
        check_offload(self.tiers, self.scheduler, self.engine)
        return self

    @model_validator(mode="after")
    def _check_sequences(self) -> Self:
        if self.trace.n > self.max_num_seqs:
            raise ValueError(f"trace.n={self.trace.n}: must be <= max_num_seqs={self.max_num_seqs}")
        return self

    @model_validator(mode="after")
    def _check_preemption(self) -> Self:
        mode = self.scheduler.preemption
        if mode in ("swap", "auto") and not self.tiers.host.gib:
            raise ValueError(
                f"scheduler.preemption={mode}: needs host memory to move KV blocks to; use tiers=host or set "
                "tiers.host.gib > 0"
            )
        if mode == "auto" and self.engine.kind != "sim" and self.scheduler.recompute_token_us is None:
            raise ValueError(
                f"scheduler.recompute_token_us=null: engine={self.engine.kind} has no cost model to take it from, and "
                "scheduler.preemption=auto needs the time of a token"
            )
        return self

    @model_validator(mode="after")
    def _check_speculation(self) -> Self:
        check_fits(
            self.speculation,
            self.engine,
            self.scheduler,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            tensor_parallel_size=self.tensor_parallel_size,
        )
        return self

    @model_validator(mode="after")
    def _check_tensor_parallel(self) -> Self:
        if self.model.blocks and self.engine.kind != "sim" and not getattr(self.engine, "weights", None):
            raise ValueError(
                f"model.blocks: engine={self.engine.kind} builds layers that are alike; give engine.weights, or use "
                "engine=sim"
            )
        if wrong := self.model.shares_out(self.tensor_parallel_size):
            raise ValueError(f"tensor_parallel_size={self.tensor_parallel_size}: {wrong} of {self.model.name}")
        return self

    @model_validator(mode="after")
    def _check_fleet(self) -> Self:
        for key in ("replicas", "pipeline_parallel_size"):
            if getattr(self, key) > 1 and self.engine.kind != "sim":
                raise ValueError(f"{key}={getattr(self, key)}: engine={self.engine.kind} is one server; use engine=sim")
        if not isinstance(self.fleet, AlikeFleet):
            check_pools(self.fleet, self.replicas, self.engine, self.task, self.trace.n)
        most = min(self.model.num_layers, self.max_num_seqs)
        alone = isinstance(self.fleet, AlikeFleet) and self.pipeline_parallel_size == 1
        check_ranks(
            self.data_parallel_size, self.model, self.engine, shares_out=self.expert_parallel,
            steps_alone=alone and self.speculation.kind == "none",
        )  # fmt: skip
        if self.expert_parallel:
            check_whole_experts(self.num_expert_ranks, self.model, self.engine, self.cost)
        check_changes(
            self.failures, self.autoscaler, self.fleet, self.num_servers, replicas=self.replicas,
            is_plain=self.engine.kind == "sim" and alone and self.data_parallel_size == 1 and not self.tiers.is_on,
            has_slo=self.metrics.slo != SloConfig(percentile=self.metrics.slo.percentile),
        )  # fmt: skip
        check_stages(self.pipeline_parallel_size, most, self.engine, self.scheduler, self.tiers, self.cost)
        return self

    @model_validator(mode="after")
    def _check_quantization(self) -> Self:
        if self.weight_format == "mxfp4" and not self.model.has_experts:
            raise ValueError(
                f"quantization=mxfp4: quantises experts only, and {self.model.name} has none; use fp8, int4 or nvfp4"
            )
        return self

    @model_validator(mode="after")
    def _check_real_quantization(self) -> Self:
        if isinstance(self.engine, RealEngineConfig) and self.weight_format not in _REAL_FORMATS:
            raise ValueError(
                f"quantization={self.weight_format}: engine={self.engine.kind} has {', '.join(_REAL_FORMATS)}; use one "
                "of these or engine=sim"
            )
        return self

    @model_validator(mode="after")
    def _check_tasks(self) -> Self:
        check_profile(self.task, self.profile, self.engine, self.cost)
        check_measured(self.task, self.engine, self.validation, self.calibration, self.observe)
        check_searches(self.task, self.metrics.slo, self.capacity, self.search)
        check_serving(self.task, self.serve, self.engine)
        reads = self.task in ("report", "plot")
        if reads and not self.results:
            raise ValueError(f"results: task={self.task} needs result folders, e.g. results=[outputs/a,outputs/b]")
        if not reads and self.results:
            raise ValueError("results: read by task=report and plot only; add task=report to compare earlier results")
        return self
