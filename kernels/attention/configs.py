"""Compile-time choices of the attention kernels for each GPU architecture, in one table.

Those of 90, but for float8 and integers in prompts, are the fastest of 10 to 20 that were timed on an H100 (2026-11-26,
Triton 3.6). The others are made from what the compiler reports, as no such GPU was at hand: no spills, two and more
programs on a multiprocessor (`experiments/results/kernel_occupancy.csv`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch

from kernels.cache.kv_integers import BITS
from kernels.cache.kv_store import FP8_DTYPE
from kernels.runtime import next_power_of_2

Elements = Literal["float32", "half", "float8", "integers"]
"""What keys and values are: float32; float16 or bfloat16; or, with half-precision queries, float8 or integers."""


@dataclass(frozen=True)
class DecodeConfig:
    """Keys of a tile, warps and pipeline stages of a program, and how many programs a multiprocessor holds."""

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


@dataclass(frozen=True)
class PrefillConfig:
    """As DecodeConfig; block_m: rows of a tile of queries, each a token in one query head."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    programs_per_sm: int


# For heads of 65 to 128 elements; tiles for other sizes have about as many bytes. Cards with 99 KB of shared memory
# (86, 89, 120) take small tiles. A capability without a row of its own takes the row of the next one before it.
_ROWS = {80: 80, 86: 89, 87: 80, 89: 89, 90: 90, 100: 100, 120: 89}
_DECODE_SMALL: dict[Elements, DecodeConfig] = {
    "half": DecodeConfig(32, 4, 3, 2),
    "float8": DecodeConfig(32, 4, 3, 4),
    "integers": DecodeConfig(32, 4, 3, 2),
    "float32": DecodeConfig(16, 4, 3, 1),
}
_DECODE_LARGE: dict[Elements, DecodeConfig] = {
    "half": DecodeConfig(32, 4, 3, 6),
    "float8": DecodeConfig(32, 4, 4, 5),
    "integers": DecodeConfig(32, 4, 3, 4),
    "float32": DecodeConfig(16, 4, 3, 2),
}
_DECODE: dict[int, dict[Elements, DecodeConfig]] = {
    80: {**_DECODE_LARGE, "half": DecodeConfig(32, 4, 3, 4)},
    89: _DECODE_SMALL,
    90: {**_DECODE_LARGE, "float8": DecodeConfig(32, 1, 3, 10)},
    100: {**_DECODE_LARGE, "float8": DecodeConfig(32, 4, 4, 4)},
}
_PREFILL_SMALL: dict[Elements, PrefillConfig] = {
    "half": PrefillConfig(64, 16, 4, 3, 2),
    "float8": PrefillConfig(64, 32, 4, 3, 2),
    "integers": PrefillConfig(128, 32, 8, 3, 1),  # 64 rows in 4 warps spill registers
    "float32": PrefillConfig(32, 16, 8, 3, 1),
}
_PREFILL_LARGE: dict[Elements, PrefillConfig] = {
    **_PREFILL_SMALL,
    "half": PrefillConfig(128, 32, 8, 3, 2),
    "integers": PrefillConfig(64, 32, 4, 3, 2),
}
_PREFILL: dict[int, dict[Elements, PrefillConfig]] = {
    80: {**_PREFILL_SMALL, "half": PrefillConfig(64, 32, 4, 3, 2)},
    89: _PREFILL_SMALL,
    90: _PREFILL_LARGE,
    100: {**_PREFILL_LARGE, "half": PrefillConfig(128, 32, 4, 3, 2)},
}


def decode_config(capability: int, head_dim: int, element_size: int, cache_dtype: torch.dtype) -> DecodeConfig:
    """The choices for a compute capability such as 90, a head_dim (1..256), bytes of an element of q, and the cache."""
    return _decode_config(capability, head_dim, elements_of(element_size, cache_dtype))


def prefill_config(
    capability: int, head_dim: int, rows: int, element_size: int, cache_dtype: torch.dtype
) -> PrefillConfig:
    """As `decode_config`; rows: tokens of the longest chunk times the query heads of a KV head."""
    elements = elements_of(element_size, cache_dtype)
    chosen = _prefill_config(capability, head_dim, elements)
    largest = chosen.block_m // 2 if elements == "half" else 0  # small tiles of other elements may spill registers
    if elements == "integers" and chosen.block_m == 128:
        largest = 16
    if rows > largest:
        return chosen
    return replace(chosen, block_m=max(16, next_power_of_2(rows)), num_warps=4)


def latent_config(capability: int, rows: int) -> PrefillConfig:
    """The choice for latents of 512 elements in half precision; rows: tokens of the longest chunk times query heads."""
    row = _row(capability)
    if row == 90:
        return PrefillConfig(16, 32, 4, 3, 1) if rows <= 16 else PrefillConfig(64, 64, 8, 2, 1)
    if rows <= 16 or row == 89:
        return PrefillConfig(16, 16, 4, 3, 1 if row == 89 else 2)
    return PrefillConfig(32, 32, 8, 3, 1)


@lru_cache(maxsize=64)
def _decode_config(capability: int, head_dim: int, elements: Elements) -> DecodeConfig:
    chosen = _DECODE[_row(capability)][elements]
    if head_dim > 128:
        warps = 8 if elements == "float32" else 4
        programs = chosen.programs_per_sm - chosen.programs_per_sm // 4
        programs = {"float32": 1, "float8": 3}.get(elements, programs)
        return replace(chosen, block_n=16, num_warps=warps, programs_per_sm=programs)
    return replace(chosen, block_n=min(chosen.block_n * (128 // _padded(head_dim)), 128))


@lru_cache(maxsize=64)
def _prefill_config(capability: int, head_dim: int, elements: Elements) -> PrefillConfig:
    chosen = _PREFILL[_row(capability)][elements]
    if head_dim > 128 and elements == "integers":
        return PrefillConfig(32, 16, 8, chosen.num_stages, 2)
    if head_dim > 128 and elements == "float32" and _row(capability) == 80:
        return PrefillConfig(8, 16, 4, chosen.num_stages, 2)  # 16 rows in 8 warps spill registers with Triton 3.6
    if head_dim > 128:
        warps = 8 if elements == "float32" else 4
        # A tile of the products of sm_100 takes half of the tensor memory, or all of it if the heads are wide.
        has_tensor_memory = _row(capability) == 100
        programs = 1 if has_tensor_memory else chosen.programs_per_sm
        halves = not (has_tensor_memory and elements == "float8")  # 32 rows of float8 spill registers there
        block_m = chosen.block_m // 2 if halves else chosen.block_m
        return replace(chosen, block_m=block_m, block_n=16, num_warps=warps, programs_per_sm=programs)
    return replace(chosen, block_n=min(chosen.block_n * (128 // _padded(head_dim)), 64))


def _row(capability: int) -> int:
    return _ROWS[max((known for known in _ROWS if known <= capability), default=80)]


def _padded(head_dim: int) -> int:
    return max(16, next_power_of_2(head_dim))


def elements_of(element_size: int, cache_dtype: torch.dtype) -> Elements:
    """What keys and values are, given the bytes of an element of q."""
    if cache_dtype in BITS:
        return "integers"
    if cache_dtype == FP8_DTYPE:
        return "float8"
    return "half" if element_size == 2 else "float32"


@lru_cache(maxsize=8)
def device_limits(device: torch.device) -> tuple[int, int]:
    """(compute capability such as 90, multiprocessors) of a device; those of the interpreter are made up."""
    if device.type != "cuda":
        return 90, 1
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor, int(torch.cuda.get_device_properties(device).multi_processor_count)
