"""Devices as the simulator sees them: memory and rates."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """One accelerator and its link to its peers.

    `memory_bandwidth` and `link_bandwidth` (one direction) in bytes/s, `flops` dense operations/s by "bf16" and
    "fp32", and by "fp8", "int8" and "fp4" where it has them. The efficiencies are the shares of these rates that
    kernels reach; `link_latency_s` the fixed time of an all-reduce, `step_overhead_s` the host time of one engine step,
    `multiprocessors` their number on a GPU, if known, `shares_kv_reads` whether query heads of a KV head read it
    once in steps with prompts, too, `flash_attention` the version of FlashAttention that vLLM runs and
    `kv_reuse_bandwidth` the bytes/s of KV that it takes where other sequences have just read it
    (`costs/shared_reads.py`), both None where that was not measured, `aiconfigurator_system` the name in NVIDIA's
    database of operator times, if it is in there. `kernels_like` is a device whose measured kernels stand in where its
    own were not timed.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    flops: dict[str, float] = field(hash=False)
    memory_efficiency: float
    flops_efficiency: float
    link_bandwidth: float
    link_latency_s: float
    step_overhead_s: float
    multiprocessors: int | None = None
    shares_kv_reads: bool = True
    flash_attention: int | None = None
    kv_reuse_bandwidth: float | None = None
    aiconfigurator_system: str | None = None
    kernels_like: Device | None = None
