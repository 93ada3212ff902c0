"""Settings of the real engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.scheduler_options import SchedulerOptions

Quantized = Literal["none", "fp8", "fp8_block"]

_LONGEST_TIMEOUT_S = 86_400


@dataclass(frozen=True)
class ExecutionOptions:
    """How the real engine executes plans: keys of the configuration groups `engine=gpu` and `engine=cpu`.

    Attributes:
        attention_backend: `auto` takes the fastest backend that runs on the device.
        kv_cache_dtype: dtype of the KV cache. `auto` keeps the model's dtype; `fp8` is 8 bits (e4m3), with a scale per
            KV head.
        cuda_graphs: whether decode steps run as CUDA graphs. `auto` uses graphs where the device and the attention
            backend allow them, and `false` never does. `true` raises ModelError on a GPU whose attention backend cannot
            be captured; on the CPU it runs decode steps in the same padded batches, without capturing them.
        max_lookahead_steps: most decode steps in one plan; waiting requests are looked at only between plans.
        worker_timeout_s: longest wait for a tensor-parallel rank to execute a plan; the engine then fails.
    """

    attention_backend: Literal["auto", "flash", "triton", "torch"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    max_lookahead_steps: int = 8
    worker_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.worker_timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(f"worker_timeout_s={self.worker_timeout_s}: must be in (0, {_LONGEST_TIMEOUT_S}]")
        if self.max_lookahead_steps < 1:
            raise ValueError(f"max_lookahead_steps={self.max_lookahead_steps}: must be an integer >= 1")


@dataclass(frozen=True)
class EngineConfig(ExecutionOptions, SchedulerOptions):
    """Settings of one engine; `conf/config.yaml` explains the fields that are not listed here.

    Attributes:
        dtype: of weights and activations; None takes the dtype of the model's `config.json`.
        quantization: of attention's projections and the MLPs; None takes the model's. `fp8` has a scale per output
            channel, `fp8_block` one per 128 x 128 weights; weights that are not in float8 yet are quantised as they are
            loaded, each rank by the scales of its own part.
        num_blocks: size of the KV pool; None fills the free memory.
        max_model_len: most tokens of a sequence, prompt and output; None takes the model's own limit.
        load_format: "auto" reads safetensors from the model's folder; "random" draws weights from `seed`.

    Raises:
        ValueError: a value is out of range, or the real engine does not support it.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    quantization: Quantized | None = None
    block_size: int = 16
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    load_format: Literal["auto", "random"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        SchedulerOptions.__post_init__(self)
        ExecutionOptions.__post_init__(self)
        if self.async_scheduling:
            raise ValueError("async_scheduling: the real engine plans a step when the one before it has ended")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization={self.gpu_memory_utilization} must be in (0, 1]")
