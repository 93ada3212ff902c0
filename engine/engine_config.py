"""Settings of the real engine, and how one request samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.core.scheduler_options import SchedulerOptions


@dataclass(frozen=True)
class ExecutionOptions:
    """How the real engine executes plans: keys of the configuration groups `engine=gpu` and `engine=cpu`.

    Attributes:
        attention_backend: auto takes the fastest that the device has.
        kv_cache_dtype: of keys and values: auto (the model's), or 8 bits (e4m3) with a scale per head (fp8).
        cuda_graphs: whether decode steps run as CUDA graphs: auto where the device and the attention backend allow it;
            true fails where the backend does not, and on the CPU runs the same padded batches uncaptured.
        max_lookahead_steps: most decode steps between two looks at the queue.
    """

    attention_backend: Literal["auto", "flash", "triton", "torch"] = "auto"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    max_lookahead_steps: int = 8

    def __post_init__(self) -> None:
        if self.max_lookahead_steps < 1:
            raise ValueError(f"max_lookahead_steps={self.max_lookahead_steps}: must be an integer >= 1")


@dataclass(frozen=True)
class EngineConfig(ExecutionOptions, SchedulerOptions):
    """What an engine is built with; names and meanings as in the configuration of a run.

    `device` is "cpu" or "cuda"; `dtype` of weights and activations, None for the model's own; `num_blocks=None` sizes
    the KV pool from free memory; `load_format` "auto" reads safetensors from the model's folder, "random" makes seeded
    weights of the right shapes.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
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


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off; equal `seed` and prompt give equal tokens. Generation
    ends after `max_tokens`, at one of `stop_token_ids`, or at the model's end-of-sequence token unless `ignore_eos`;
    the token that ended it is the last one returned. `n` > 1 is reserved.

    Raises:
        ValueError: a value is out of range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = field(default=())
    n: int = 1

    def __post_init__(self) -> None:
        checks = {
            "max_tokens": (self.max_tokens >= 1, "at least 1"),
            "temperature": (self.temperature >= 0, "at least 0"),
            "top_k": (self.top_k >= 0, "at least 0 (off)"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "n": (self.n == 1, "1: more outputs per prompt are reserved for a later version"),
        }
        for name, (is_valid, allowed) in checks.items():
            if not is_valid:
                raise ValueError(f"{name}={getattr(self, name)} must be {allowed}")
