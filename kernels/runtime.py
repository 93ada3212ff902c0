"""Imports Triton where it is installed, and a stand-in where it is not, so that `kernels` can be imported anywhere.

Triton kernels run for CUDA tensors only; on any other device the PyTorch references run. The stand-in only provides the
decorator `triton.jit`; it cannot launch kernels.
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
    # Types of kernel parameters: `Value` is known at launch, `constexpr` when the kernel is compiled.
    Value: TypeAlias = Any
    constexpr: TypeAlias = Any
else:
    # The kernels are written for fused multiply and add, which Triton 3.10 turns off where nobody asks for it.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    try:
        import triton
        import triton.language as tl

        # Triton reads the annotations when it compiles a kernel, and accepts only types of its own.
        Value, constexpr = tl.tensor, tl.constexpr
        HAS_TRITON = True
    except ImportError:
        triton, tl = SimpleNamespace(jit=lambda fn=None, **_: fn or (lambda kernel: kernel)), None
        Value = constexpr = Any
        HAS_TRITON = False

# True in Triton's interpreter, which runs kernels on CPU tensors. The interpreter's `tl.dot` multiplies the raw bits of
# bfloat16, so kernels with a `tl.dot` take INTERPRETED as a constexpr and cast to float32 if it is true.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether Triton kernels run for `tensor`: it lies on a CUDA device and Triton is installed."""
    return HAS_TRITON and tensor.is_cuda


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` (`value` >= 1)."""
    return 1 << (value - 1).bit_length()


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-numerator // denominator)
