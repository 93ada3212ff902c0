"""Linear layers with float8 (e4m3) weights, quantised as `kernels.linear.fp8_numbers` does it.

reference, CPU           weights times scales in float32, product in float32
CUDA from SM 89 on       inputs are quantised too, a scale per token and `columns` inputs; product in float8 by
                         `torch._scaled_mm` for scales per channel where it works, and for blocks of 128 x 128
                         weights on SM 90 where there are many tokens; by Triton otherwise
CUDA below               Triton turns weights into 16 bits in registers; inputs stay as they are
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cache.kv_store import FP8_DTYPE
from kernels.linear.fp8_gemm import fp8_gemm
from kernels.linear.fp8_numbers import Block, dequantize_weight, quantize_tokens
from kernels.runtime import runs_triton

_CUBLAS_BLOCK, _CUBLAS_TOKENS, _CUBLAS_FROM = (128, 128), 4, 256


def fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, block: Block, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, [T, K] -> [T, N] of x's dtype; weight and scales as `quantize_weight` returns them."""
    if runs_triton(x):
        y = _product_on_cuda(x, weight, scales, block)
        return y if bias is None else y + bias
    return fp8_linear_reference(x, weight, scales, block, bias)


def fp8_linear_reference(x: Tensor, weight: Tensor, scales: Tensor, block: Block, bias: Tensor | None = None) -> Tensor:
    """PyTorch version of `fp8_linear`, which quantises no inputs."""
    wide = None if bias is None else bias.float()
    return functional.linear(x.float(), dequantize_weight(weight, scales, block), wide).to(x.dtype)


def _product_on_cuda(x: Tensor, weight: Tensor, scales: Tensor, block: Block) -> Tensor:
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    if x.shape[0] == 0:
        return out
    x = x if x.stride(1) == 1 else x.contiguous()
    if not multiplies_float8(x.device):
        fp8_gemm(x, None, weight, scales, block, out)
        return out
    if _cublas_takes_blocks(x, weight, block):
        return _product_of_blocks(x, weight, scales)
    quantized, x_scales = quantize_tokens(x, block[1])
    if scales.shape == (weight.shape[0], 1) and _scaled_mm_takes(x, weight):
        return torch._scaled_mm(quantized, weight.t(), x_scales, scales.t(), out_dtype=x.dtype)
    fp8_gemm(quantized, x_scales, weight, scales, block, out)
    return out


def multiplies_float8(device: torch.device) -> bool:
    """Whether a CUDA device has products in float8, for which inputs are quantised."""
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _scaled_mm_takes(x: Tensor, weight: Tensor) -> bool:
    """Whether `torch._scaled_mm` multiplies these with a scale per token and per output channel."""
    return x.dtype == torch.bfloat16 and not any(size % 16 for size in weight.shape) and _scaled_mm_works(x.device)


@cache
def _scaled_mm_works(device: torch.device) -> bool:
    """Whether this build of torch has the kernel for the device: a product of ones says so."""
    ones = torch.ones(16, 16, device=device).to(FP8_DTYPE)
    scales = torch.ones(16, 1, device=device)
    try:
        product = torch._scaled_mm(ones, ones.t(), scales, scales.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):
        return False
    return bool((product == 16).all())


def _product_of_blocks(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """The product by cuBLAS with a scale per token and 128 inputs and per 128 x 128 weights.

    It takes multiples of 4 tokens. Those that pad them are not written: what cuBLAS makes of them is cut off.
    """
    num_tokens = x.shape[0]
    quantized, x_scales = quantize_tokens(x, _CUBLAS_BLOCK[1], by_groups=True, multiple=_CUBLAS_TOKENS)
    return torch._scaled_mm(quantized, weight.t(), x_scales, scales.t(), out_dtype=x.dtype)[:num_tokens]


def _cublas_takes_blocks(x: Tensor, weight: Tensor, block: Block) -> bool:
    """Whether cuBLAS multiplies these, and faster than Triton (H100: 0.74 times its time for 256 tokens)."""
    aligned = weight.shape[0] % 128 == 0 and weight.shape[1] % 512 == 0  # torch wants rows of scales in fours
    is_for_it = block == _CUBLAS_BLOCK and aligned and x.dtype == torch.bfloat16
    return is_for_it and x.shape[0] >= _CUBLAS_FROM and _cublas_has_blocks(x.device)


@cache
def _cublas_has_blocks(device: torch.device) -> bool:
    """Whether this build of torch has the product in blocks for the device (9.0, CUDA 12.9): one of ones says so."""
    ones = torch.ones(512, 512, device=device).to(FP8_DTYPE)
    x_scales, scales = torch.ones(4, 512, device=device), torch.ones(4, 4, device=device)
    try:
        product = torch._scaled_mm(ones, ones.t(), x_scales.t(), scales.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):
        return False
    return bool((product == 512).all())
