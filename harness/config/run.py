"""The configuration of one run: the groups, the top-level keys, and what must hold between them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.config.base import ConfigModel, Fraction, NonNegativeInt, PositiveInt, Text
from harness.config.system import CostConfig, DeviceConfig, EngineConfig, MetricsConfig, ModelConfig, SchedulerConfig
from harness.config.workload import ArrivalConfig, TraceConfig


class RunConfig(ConfigModel):
    """Everything that decides the outcome of a run. `num_blocks=None` derives the pool from the device's memory,
    `max_model_len=None` takes the model's own limit; `results` are the folders that `task=report` compares."""

    task: Literal["run", "report"] = "run"
    engine: EngineConfig
    trace: TraceConfig
    arrival: ArrivalConfig
    model: ModelConfig
    device: DeviceConfig
    scheduler: SchedulerConfig
    cost: CostConfig
    metrics: MetricsConfig
    block_size: Annotated[int, Field(ge=1, le=1 << 20)] = 16
    max_num_seqs: PositiveInt = 256
    max_num_batched_tokens: PositiveInt = 8192
    max_model_len: PositiveInt | None = None
    tensor_parallel_size: PositiveInt = 1
    gpu_memory_utilization: Fraction = 0.9
    num_blocks: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    seed: NonNegativeInt = 0
    progress: bool = True
    plots: bool = True
    results: Annotated[tuple[Text, ...], Field(strict=False)] = ()

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
    def _check_tensor_parallel(self) -> Self:
        size = self.tensor_parallel_size
        heads, kv_heads = self.model.num_attention_heads, self.model.num_kv_heads
        if heads % size:
            raise ValueError(
                f"tensor_parallel_size={size}: must divide model.num_attention_heads={heads} of {self.model.name}"
            )
        if kv_heads % size and size % kv_heads:  # beyond their number, KV heads are replicated
            raise ValueError(
                f"tensor_parallel_size={size}: must divide or be a multiple of model.num_kv_heads={kv_heads} "
                f"of {self.model.name}"
            )
        return self

    @model_validator(mode="after")
    def _check_results(self) -> Self:
        if self.task == "report" and not self.results:
            raise ValueError(
                "results: task=report needs the result folders to compare, e.g. results=[outputs/a,outputs/b]"
            )
        if self.task == "run" and self.results:
            raise ValueError("results: read by task=report only; add task=report to compare earlier results")
        return self
