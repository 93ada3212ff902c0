"""Settings of the real engine."""

from __future__ import annotations

import difflib
from collections import abc
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from engine.core.kv.reserved.reservation import FORESEEING, Contiguous
from engine.core.kv.tiers.tier import TierEviction
from engine.core.scheduler_options import (
    OffloadOptions,
    SchedulerOptions,
    conflict_with_drafts,
    conflict_with_reservations,
)
from engine.field_types import check_types
from engine.prompt_lookup import NgramOptions

Quantized = Literal["none", "fp8", "fp8_block"]
KVDtype = Literal["auto", "fp8", "int8", "int4"]

_Device = Literal["cpu", "cuda"]
_Dtype = Literal["float32", "bfloat16", "float16"]
_LONGEST_TIMEOUT_S = 86_400
_FLASH_PAGE = 256


@dataclass(frozen=True)
class ExecutionOptions:
    """How the real engine executes plans: keys of the configuration groups `engine=gpu` and `engine=cpu`.

    Attributes:
        attention_backend: `auto` takes the fastest backend that runs on the device. `flash` is the package flash-attn,
            whose KV blocks have a multiple of 256 tokens; `torch_flash` is `triton` with torch's own FlashAttention for
            prompts of which nothing is cached.
        kv_cache_dtype: dtype of the KV cache. `auto` keeps the model's dtype; `fp8` is 8 bits (e4m3), with a scale per
            KV head; `int8` and `int4` have a float16 scale per token and KV head.
        cuda_graphs: whether decode steps run as CUDA graphs. `auto` uses graphs where the device and the attention
            backend allow them, and `false` never does. `true` raises ModelError on a GPU whose attention backend cannot
            be captured; on the CPU it runs decode steps in the same padded batches, without capturing them.
        max_graph_tokens: most tokens of a step with prompt chunks that runs as CUDA graphs of everything but attention,
            where decode steps run as CUDA graphs; 0 for none.
        max_lookahead_steps: most decode steps in one plan; waiting requests are looked at only between plans. With
            `async_scheduling` each step is planned on its own, whatever this is.
        worker_timeout_s: longest wait for a tensor-parallel rank to execute a plan; the engine then fails.
    """

    attention_backend: Literal["auto", "flash", "triton", "torch_flash", "torch"] = "auto"
    kv_cache_dtype: KVDtype = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    max_graph_tokens: int = 8192
    max_lookahead_steps: int = 8
    worker_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.worker_timeout_s <= _LONGEST_TIMEOUT_S:
            raise ValueError(f"worker_timeout_s={self.worker_timeout_s}: must be in (0, {_LONGEST_TIMEOUT_S}]")
        if self.kv_cache_dtype not in get_args(KVDtype):
            raise ValueError(f"kv_cache_dtype={self.kv_cache_dtype!r}: choose one of {', '.join(get_args(KVDtype))}")
        if self.max_graph_tokens < 0:
            raise ValueError(f"max_graph_tokens={self.max_graph_tokens}: must be an integer >= 0")
        if self.max_lookahead_steps < 1:
            raise ValueError(f"max_lookahead_steps={self.max_lookahead_steps}: must be an integer >= 1")


@dataclass(frozen=True)
class EngineConfig(ExecutionOptions, SchedulerOptions):
    """Settings of one engine; `conf/config.yaml` explains the fields that are not listed here.

    Attributes:
        dtype: of weights and activations; None takes the dtype of the model's `config.json`.
        quantization: of attention's projections and the MLPs, experts included; None takes the model's. `fp8` has a
            scale per output channel, `fp8_block` one per 128 x 128 weights; weights that are not in float8 yet are
            quantised as they are loaded, each rank by the scales of its own part.
        block_size: tokens of a KV block; None takes `default_block_size`.
        chooses_block_size: whether `block_size` was None, so that another attention backend may take another size.
        num_blocks: size of the KV pool; None fills the free memory.
        host_kv_gib: host memory for KV blocks that leave the device, in GiB, of all ranks together; 0 for none.
        offload: blocks that leave the device's prefix cache go to host memory, and hits come back from there.
        overlap: a request with such hits waits for them while others compute; else the step waits for them.
        host_eviction: which cached block of host memory goes first, as in `OffloadOptions`.
        host_gb_per_s: rate of each device's link to the host, which preemption="auto" predicts with, in GB/s.
        max_model_len: most tokens of a sequence, prompt and output; None takes the model's own limit.
        contiguous: hand out the KV memory as contiguous reservations; None takes blocks one by one.
        speculation: how tokens are drafted; None drafts none. Steps with drafts run eagerly, and drafts are made
            between steps, so that each step is planned on its own.
        load_format: "auto" reads safetensors from the model's folder; "random" draws weights from `seed`.

    Raises:
        ValueError: a value is out of range, or the real engine does not support it.
    """

    device: _Device = "cpu"
    dtype: _Dtype | None = None
    quantization: Quantized | None = None
    block_size: int = None  # type: ignore[assignment]  # set below
    num_blocks: int | None = None
    host_kv_gib: float = 0.0
    host_gb_per_s: float = 25.0
    offload: bool = False
    overlap: bool = True
    host_eviction: TierEviction = "lru"
    gpu_memory_utilization: float = 0.9
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    contiguous: Contiguous | None = None
    speculation: NgramOptions | None = None
    load_format: Literal["auto", "random"] = "auto"
    seed: int = 0
    chooses_block_size: bool = field(init=False, repr=False, compare=False)

    @property
    def tokens_per_decode(self) -> int:
        """Most tokens that a decode computes in a step."""
        return 1 if self.speculation is None else 1 + self.speculation.num_speculative_tokens

    def __post_init__(self) -> None:
        object.__setattr__(self, "chooses_block_size", self.block_size is None)
        if self.block_size is None:
            object.__setattr__(self, "block_size", default_block_size(str(self.attention_backend)))
        check_types(self)
        SchedulerOptions.__post_init__(self)
        ExecutionOptions.__post_init__(self)
        if self.speculation is not None and (conflict := conflict_with_drafts(self)):
            raise ValueError(conflict)
        if self.eviction == "radix" and self.async_scheduling:
            raise ValueError(
                "async_scheduling=True: eviction=radix changes blocks of steps that are planned; set False"
            )
        if self.async_scheduling and self.speculation is not None:
            raise ValueError("async_scheduling=True: must be False with speculation, whose steps bring several tokens")
        if self.contiguous is not None:
            self._check_reservations(self.contiguous)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization={self.gpu_memory_utilization} must be in (0, 1]")
        if not self.host_kv_gib >= 0:
            raise ValueError(f"host_kv_gib={self.host_kv_gib}: must be a number >= 0")
        if not self.host_gb_per_s > 0:
            raise ValueError(f"host_gb_per_s={self.host_gb_per_s}: must be a number > 0")
        if self.preemption in ("swap", "auto") and not self.host_kv_gib:
            raise ValueError(f"preemption={self.preemption!r}: needs host memory to move KV blocks to, host_kv_gib > 0")
        if self.preemption == "auto" and self.recompute_token_us is None:
            raise ValueError("recompute_token_us=None: preemption='auto' needs the time that a lost token takes again")
        if self.offload and not self.host_kv_gib:
            raise ValueError("offload=True: needs host memory for KV blocks, host_kv_gib > 0")
        if (offload := self.offload_options) is not None:
            offload.check(self)
        if self.device not in get_args(_Device):
            raise ValueError(f"device={self.device!r}: choose one of {', '.join(get_args(_Device))}")
        if self.dtype not in (None, *get_args(_Dtype)):
            raise ValueError(f"dtype={self.dtype!r}: choose one of {', '.join(get_args(_Dtype))}")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be an integer >= 1")
        for name in ("num_blocks", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value!r}: must be an integer >= 1, or None")

        if conflict := conflict_with_pages(self.attention_backend, self.block_size):
            raise ValueError(conflict)

    def _check_reservations(self, rule: Contiguous) -> None:
        if conflict := conflict_with_reservations(self):
            raise ValueError(conflict)
        if self.host_kv_gib:
            raise ValueError(
                f"host_kv_gib={self.host_kv_gib:g}: contiguous reservations stay on the device; set it to 0"
            )
        if rule.reserve in FORESEEING:
            raise ValueError(
                f"contiguous.reserve={rule.reserve}: the real engine does not know how much a request will generate"
            )

    @property
    def offload_options(self) -> OffloadOptions | None:
        """As the core takes them; None where blocks that leave the prefix cache are lost."""
        return OffloadOptions(overlap=self.overlap, host_eviction=self.host_eviction) if self.offload else None


def default_block_size(attention_backend: str) -> int:
    """Tokens of a KV block where nobody chose: 16, and the smallest that flash-attn reads with `flash`."""
    return _FLASH_PAGE if attention_backend == "flash" else 16


def conflict_with_pages(attention_backend: str, block_size: int) -> str | None:
    """Why a block size is not one of the attention backend, in one line; None if it is."""
    if attention_backend != "flash" or block_size % _FLASH_PAGE == 0:
        return None
    return (
        f"block_size={block_size}: must be a multiple of {_FLASH_PAGE} with attention_backend=flash, "
        f"which takes {_FLASH_PAGE} by itself"
    )


_DTYPE_NAMES = {"auto": None, "half": "float16", "float": "float32"}  # of vLLM


def override(config: EngineConfig, settings: abc.Mapping[str, Any]) -> EngineConfig:
    """`config` with other values for some fields, also by the names that vLLM and nano-vllm have for them.

    `enforce_eager` turns CUDA graphs off; `dtype` may also be "auto", "half", "float" or a torch dtype.

    Raises:
        ValueError: a setting is unknown or its value is out of range.
    """
    changes = dict(settings)
    if changes.pop("enforce_eager", False):
        changes["cuda_graphs"] = False
    if changes.get("dtype") is not None:
        name = str(changes["dtype"]).removeprefix("torch.")
        changes["dtype"] = _DTYPE_NAMES.get(name, name)
    if config.chooses_block_size:
        changes.setdefault("block_size", None)  # again that of the backend, which may change
    names = [each.name for each in fields(EngineConfig) if each.init]
    for name in changes:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose among {', '.join(names)}, enforce_eager"
            raise ValueError(f"unknown setting {name}={changes[name]!r}: {hint}")
    return replace(config, **changes)
