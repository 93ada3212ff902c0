"""Choices of the attention kernels to try, and how to launch with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from unittest.mock import patch

from kernels import decode_attention, prefill_attention
from kernels.decode_attention import DecodeConfig, decode_config
from kernels.prefill_attention import PrefillConfig, prefill_config


def decode_candidates(capability: int, head_dim: int, element_size: int, cache_bits: int) -> list[DecodeConfig]:
    base = decode_config(head_dim, 4, element_size, cache_bits < 8 * element_size)
    sizes = product((32, 64, 128), (4, 8), (2, 3, 5))
    return [replace(base, block_n=n, num_warps=warps, num_stages=stages) for n, warps, stages in sizes]


def prefill_candidates(capability: int, head_dim: int, element_size: int, cache_bits: int) -> list[PrefillConfig]:
    base = prefill_config(head_dim, 8192, element_size, False)
    sizes = product((64, 128), (32, 64, 128), (4, 8), (2, 3))
    return [replace(base, block_m=m, block_n=n, num_warps=w, num_stages=s) for m, n, w, s in sizes]


@contextlib.contextmanager
def use_configs(decode: DecodeConfig | None = None, prefill: PrefillConfig | None = None) -> Iterator[None]:
    """Launch with these choices inside the block; None keeps the kernel's own."""
    with contextlib.ExitStack() as stack:
        if decode is not None:
            stack.enter_context(patch.object(decode_attention, "decode_config", lambda *_: decode))
        if prefill is not None:
            stack.enter_context(patch.object(prefill_attention, "prefill_config", lambda *_: prefill))
        yield
