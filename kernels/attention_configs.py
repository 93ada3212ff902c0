"""Compile-time choices of the attention kernels for each GPU architecture, in one table.

The choices are made from what the compiler reports, since no GPU was at hand: no spills, two and more programs on a
multiprocessor (`experiments/results/kernel_occupancy.json`). Candidates for a sweep on a GPU are listed here too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from kernels.kv_integers import BITS
from kernels.kv_store import FP8_DTYPE
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


# The table is for heads of 65 to 128 elements. A capability that has no row takes the next one before it.
_ROWS = {80: 80, 86: 89, 87: 80, 89: 89, 90: 90, 100: 100, 120: 120}
_DECODE: dict[int, dict[Elements, DecodeConfig]] = {
    90: {
        "half": DecodeConfig(32, 4, 3, 6),
        "float8": DecodeConfig(32, 4, 4, 5),
        "integers": DecodeConfig(32, 4, 3, 3),
        "float32": DecodeConfig(16, 4, 3, 2),
    },
}
_PREFILL: dict[int, dict[Elements, PrefillConfig]] = {
    90: {
        "half": PrefillConfig(128, 32, 8, 3, 2),
        "float8": PrefillConfig(64, 32, 4, 3, 3),
        "integers": PrefillConfig(64, 32, 4, 3, 2),
        "float32": PrefillConfig(32, 32, 8, 2, 1),
    },
}


@dataclass
class _Override:
    decode: DecodeConfig | None = None
    prefill: PrefillConfig | None = None


_override = _Override()


@contextlib.contextmanager
def use_configs(decode: DecodeConfig | None = None, prefill: PrefillConfig | None = None) -> Iterator[None]:
    """Launch the attention kernels with these choices in place of the table's; None keeps the table's."""
    before = _override.decode, _override.prefill
    _override.decode, _override.prefill = decode, prefill
    try:
        yield
    finally:
        _override.decode, _override.prefill = before


def decode_config(capability: int, head_dim: int, element_size: int, cache_dtype: torch.dtype) -> DecodeConfig:
    return _override.decode or _DECODE[90][elements_of(element_size, cache_dtype)]


def prefill_config(capability: int, head_dim: int, rows: int, element_size: int, cache_dtype: torch.dtype) -> PrefillConfig:
    return _override.prefill or _PREFILL[90][elements_of(element_size, cache_dtype)]


def elements_of(element_size: int, cache_dtype: torch.dtype) -> Elements:
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
