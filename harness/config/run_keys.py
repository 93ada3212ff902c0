"""The groups and top-level keys of a run, each checked on its own."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from engine.engine_config import KVDtype, default_block_size
from harness.config.schema.allocator import AllocatorConfig, PagedAllocator
from harness.config.schema.base import ConfigModel, Fraction, NonNegativeFloat, Text, within
from harness.config.schema.changes import AutoscalerConfig, FailureConfig
from harness.config.schema.fleet import AlikeFleet, FleetConfig, FrontEndConfig, NetworkConfig, PoolConfig, RouterConfig
from harness.config.schema.metrics import MetricsConfig
from harness.config.schema.model import ModelConfig, WeightFormat
from harness.config.schema.sinks import SinksConfig
from harness.config.schema.speculation import NoSpeculation, SpeculationConfig
from harness.config.schema.system import CostConfig, DeviceConfig, EngineConfig, SchedulerConfig
from harness.config.schema.tasks.capacity import CapacityConfig, SearchConfig
from harness.config.schema.tasks.needs import Task
from harness.config.schema.tasks.plotting import PlotConfig, ReportConfig
from harness.config.schema.tasks.profiling import ProfileConfig
from harness.config.schema.tasks.serving import ServeConfig
from harness.config.schema.tasks.validation import CalibrationConfig, ObserveConfig, ValidationConfig
from harness.config.schema.tiers import TiersConfig
from harness.config.schema.traffic.arrivals import ArrivalConfig
from harness.config.schema.traffic.workload import TraceConfig


class RunKeys(ConfigModel):
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
    sinks: SinksConfig = Field(default_factory=SinksConfig)
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
    exports: Annotated[tuple[Literal["aiperf", "guidellm", "inference_perf", "llm_d"], ...], Field(strict=False)] = ()
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
            self._ranks_of(pool) * (pool.pipeline_parallel_size or own[0]) * (pool.tensor_parallel_size or own[1])
            for pool in self.fleet.pools
        )

    @property
    def num_servers(self) -> int:
        """Servers that requests are spread over, at most: with data-parallel ranks, each of these."""
        if isinstance(self.fleet, AlikeFleet):
            return max(self.replicas, self.autoscaler.most * self.autoscaler.is_on) * self.data_parallel_size
        return sum(map(self._ranks_of, self.fleet.pools))

    def _ranks_of(self, pool: PoolConfig) -> int:
        return pool.replicas * (pool.data_parallel_size or self.data_parallel_size)

    @property
    def num_expert_ranks(self) -> int:
        """GPUs that share out whole experts; 1 where each has a part of every expert."""
        return self.data_parallel_size * self.tensor_parallel_size if self.expert_parallel else 1

    @property
    def is_apart(self) -> bool:
        """Whether prompts have servers of their own."""
        return not isinstance(self.fleet, AlikeFleet) and self.fleet.pools[0].role != "serve"

    @property
    def kv_connector(self) -> str:
        """That of vLLM by which prompts are handed over."""
        by_layers = not isinstance(self.fleet, AlikeFleet) and self.fleet.kv_transfer == "by_layers"
        return "P2pNcclConnector" if by_layers else "NixlConnector"

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
        directly, and as a server it has a front end of its own."""
        kind = getattr(info.data.get("engine"), "kind", "sim")
        if kind not in ("gpu", "cpu"):
            return value
        if value != FrontEndConfig(kind=value.kind):
            raise ValueError(f"kind={value.kind}: in simulation only; leave out what is given of it with engine={kind}")
        return FrontEndConfig()

    @field_validator("block_size", mode="before")
    @classmethod
    def _choose_block_size(cls, value: object, info: ValidationInfo) -> object:
        backend = getattr(info.data.get("engine"), "attention_backend", "auto")
        return default_block_size(backend) if value is None else value
