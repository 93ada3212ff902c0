"""The choice of an attention backend: which backends can run here, and which one `auto` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kernels.attention.flash_backend import (
    MAX_HEAD_DIM,
    FlashBackend,
    TorchFlashBackend,
    flash_unavailable,
    torch_flash_unavailable,
)
from kernels.attention.metadata import AttentionBackend, AttentionMetadata
from kernels.attention.torch_backend import TorchBackend
from kernels.attention.triton_backend import TritonBackend
from kernels.cache.kv_integers import LARGEST
from kernels.cache.kv_store import FP8_DTYPE
from kernels.cache.layer_kv import LayerKV
from kernels.runtime import HAS_TRITON

__all__ = [
    "AttentionBackend",
    "AttentionKind",
    "AttentionMetadata",
    "BackendName",
    "BackendUnavailableError",
    "LayerKV",
    "available_backends",
    "select_backend",
]

AttentionKind = Literal["plain", "windows", "latent"]
"""What the layers of a model have: full attention only, also windows or sinks, or latent attention."""
BackendName = Literal["auto", "flash", "triton", "torch_flash", "torch"]


class BackendUnavailableError(RuntimeError):
    """The requested attention backend cannot run here; the message says why, and which backends can."""


def available_backends(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
    kv_dtype: torch.dtype | None = None,
    kind: AttentionKind = "plain",
) -> dict[str, str | None]:
    """For every backend, best first: None if it can run, else the reason why it cannot.

    dtype: of the queries; kv_dtype: of the KV cache, by default `dtype`.
    """
    is_fp8 = kv_dtype == FP8_DTYPE
    no_flash: str | None
    no_torch_flash: str | None
    no_triton = _triton_unavailable(device, dtype, head_dim, kv_dtype)
    if kind == "latent" and dtype == torch.float32:
        no_triton = no_triton or "needs float16 or bfloat16 for latent attention, not float32"  # registers spill
    if is_fp8 or kv_dtype in LARGEST:
        no_flash = no_torch_flash = f"FlashAttention 2 reads no {'float8 cache' if is_fp8 else 'cache of integers'}"
    elif kind != "plain":
        no_flash = no_torch_flash = f"has no {'windows and sinks' if kind == 'windows' else 'latent attention'} here"
    else:
        no_flash = flash_unavailable(device, dtype, head_dim, block_size)
        no_torch_flash = no_triton or torch_flash_unavailable(device, dtype, head_dim)
    return {
        "flash": no_flash,
        "triton": no_triton,
        "torch_flash": no_torch_flash,
        "torch": None,
    }


def select_backend(
    name: BackendName,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
    kv_dtype: torch.dtype | None = None,
    kind: AttentionKind = "plain",
) -> AttentionBackend:
    """The backend of that name; `auto` takes the first of flash, triton and torch that can run.

    `torch_flash`, whose prefill has not been measured, is taken by name only.

    Arguments are those of `available_backends`.

    Raises:
        BackendUnavailableError: the backend of that name cannot run.
    """
    reasons = available_backends(device, dtype, head_dim, block_size, kv_dtype, kind)
    usable = [candidate for candidate, reason in reasons.items() if reason is None]
    chosen = usable[0] if name == "auto" else name
    if chosen not in usable:
        missing = reasons.get(chosen, "no such backend")
        raise BackendUnavailableError(f"attention backend {name!r}: {missing}; available: {', '.join(usable)}")
    backends: dict[str, Callable[[], AttentionBackend]] = {
        "flash": FlashBackend,
        "triton": TritonBackend,
        "torch_flash": TorchFlashBackend,
        "torch": TorchBackend,
    }
    return backends[chosen]()


def _triton_unavailable(
    device: torch.device, dtype: torch.dtype, head_dim: int, kv_dtype: torch.dtype | None
) -> str | None:
    if not HAS_TRITON:
        return "triton is not installed"
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"needs float32, float16 or bfloat16, not {dtype}"
    if head_dim > MAX_HEAD_DIM:
        return f"needs a head_dim up to {MAX_HEAD_DIM}, not {head_dim}"
    if kv_dtype in LARGEST and head_dim % 4:
        return f"needs a head_dim that is a multiple of 4 for a cache of integers, not {head_dim}"
    is_fp8 = kv_dtype == FP8_DTYPE
    if torch.cuda.get_device_capability(device) < (8, 9 if is_fp8 else 0):
        return f"needs compute capability {'8.9 or later for a float8 cache' if is_fp8 else '8.0 or later'}"
    return None
