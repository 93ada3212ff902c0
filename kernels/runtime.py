"""Triton where it is installed, and a stand-in that keeps these modules importable where it is not.

Kernels are compiled only for CUDA tensors; on any other device the PyTorch references run. The stand-in lets the
decorators of this package be evaluated without Triton; nothing launches through it.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    triton: Any
    tl: Any
    HAS_TRITON: bool
    # Types of kernel parameters: what is known at launch, and what is known when the kernel is compiled.
    Value: TypeAlias = Any
    constexpr: TypeAlias = Any
else:
    try:
        import triton
        import triton.language as tl

        # Triton looks annotations up when it compiles a kernel and accepts only names of its own.
        Value, constexpr = tl.tensor, tl.constexpr
        HAS_TRITON = True
    except ImportError:
        triton, tl = SimpleNamespace(jit=lambda fn=None, **_: fn or (lambda kernel: kernel)), None
        Value = constexpr = Any
        HAS_TRITON = False

# True in Triton's interpreter, which runs kernels on CPU tensors. Its `tl.dot` multiplies the raw bits of bfloat16,
# so kernels with a dot take it as a constexpr and cast to float32 there.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether kernels for `tensor` run in Triton: it lies on a CUDA device and Triton is installed."""
    return HAS_TRITON and tensor.is_cuda


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` (`value` >= 1)."""
    return 1 << (value - 1).bit_length()


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-numerator // denominator)
