"""Linear layers with float8 (e4m3) weights: quantising weights and inputs, and the product.

A block of weights `(rows, columns)` shares a float32 scale: weight = float8 number * scale. Blocks at the right and the
lower edge may be smaller. (1, K) is a scale per output channel of a [N, K] matrix.

    reference, CPU           weights times scales in float32, product in float32
    CUDA from SM 89 on       inputs are quantised too, a scale per token and `columns` inputs; product in float8 by
                             `torch._scaled_mm` for scales per channel where it works, and for blocks of 128 x 128
                             weights on SM 90 where there are many tokens; by Triton otherwise
    CUDA below               Triton turns weights into 16 bits in registers; inputs stay as they are
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cache.kv_store import FP8_DTYPE, FP8_MAX
from kernels.launch import Launcher
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton

Block = tuple[int, int]

_SMALLEST_SCALE = 1e-12  # of an input, so that zeros are divided by no zero
_QUANTIZE_BLOCK = 2048
_TILES_DOWN = 16
_CUBLAS_BLOCK, _CUBLAS_TOKENS, _CUBLAS_FROM = (128, 128), 4, 256


def quantize_weight(weight: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """(e4m3[N, K], float32 scales[ceil(N / rows), ceil(K / columns)]) of a matrix [N, K] of any float dtype.

    A scale maps the largest absolute number of its block to 448, the largest e4m3 number.
    """
    (n, k), (rows, columns) = weight.shape, block
    down, right = ceil_div(n, rows), ceil_div(k, columns)
    padded = functional.pad(weight.float(), (0, right * columns - k, 0, down * rows - n))
    largest = padded.abs().view(down, rows, right, columns).amax(dim=(1, 3))
    scales = (largest / FP8_MAX).clamp_(min=torch.finfo(torch.float32).tiny)
    scaled = weight.float() / spread_scales(scales, block, n, k)
    return scaled.clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE), scales


def spread_scales(scales: Tensor, block: Block, n: int, k: int) -> Tensor:
    """The scale of each weight, [N, K], or [N, 1] where all columns of a row have the same one."""
    rows = scales.repeat_interleave(block[0], dim=0)[:n] if block[0] > 1 else scales
    return rows if scales.shape[1] == 1 else rows.repeat_interleave(block[1], dim=1)[:, :k]


def dequantize_weight(weight: Tensor, scales: Tensor, block: Block) -> Tensor:
    """float32[N, K] of e4m3[N, K]."""
    return weight.float() * spread_scales(scales, block, *weight.shape)


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


def quantize_tokens_reference(x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """PyTorch version of `quantize_tokens`."""
    tokens, k = x.shape
    right = ceil_div(k, columns)
    padded = functional.pad(x.float(), (0, right * columns - k)).view(tokens, right, columns)
    scales = padded.abs().amax(dim=2).clamp_(min=_SMALLEST_SCALE) / FP8_MAX
    scaled = (padded / scales.unsqueeze(2)).view(tokens, -1)[:, :k]
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).contiguous(), scales


@triton.jit(do_not_specialize=["group_stride"])
def quantize_tokens_kernel(
    x_ptr: Value,
    out_ptr: Value,
    scales_ptr: Value,
    x_stride: Value,
    token_stride: Value,
    group_stride: Value,
    k_size: constexpr,
    columns: constexpr,
    block: constexpr,
    groups: constexpr,
    smallest: constexpr,
    fp8_max: constexpr,
) -> None:
    """One program quantises `groups` times `columns` inputs of one token."""
    token = tl.program_id(0).to(tl.int64)
    group, inner = tl.program_id(1) * groups + tl.arange(0, groups), tl.arange(0, block)
    places = group[:, None] * columns + inner[None, :]
    mask = (inner < columns)[None, :] & (places < k_size)
    x = tl.load(x_ptr + token * x_stride + places, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), smallest) / fp8_max
    scale_places = token * token_stride + group.to(tl.int64) * group_stride
    tl.store(scales_ptr + scale_places, scale, mask=group * columns < k_size)
    scaled = tl.minimum(tl.maximum(x / scale[:, None], -fp8_max), fp8_max)
    tl.store(out_ptr + token * k_size + places, scaled.to(out_ptr.dtype.element_ty), mask=mask)


launch_quantize_tokens = Launcher(quantize_tokens_kernel)


def quantize_tokens(x: Tensor, columns: int, *, by_groups: bool = False, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """(e4m3[T, K], float32 scales[T, ceil(K / columns)]) of inputs [T, K]; Triton.

    With `by_groups` the scales of a group of columns follow one another in memory, not those of a token. Both get rows
    up to a `multiple`, uninitialised.
    """
    tokens, k = x.shape
    columns = min(columns, k)
    num_groups = ceil_div(k, columns)
    num_rows = ceil_div(tokens, multiple) * multiple
    out = torch.empty(num_rows, k, dtype=FP8_DTYPE, device=x.device)
    shape = (num_groups, num_rows) if by_groups else (num_rows, num_groups)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    scales = scales.t() if by_groups else scales
    if tokens:
        block = next_power_of_2(columns)
        groups = max(1, min(next_power_of_2(num_groups), _QUANTIZE_BLOCK // block))
        launch_quantize_tokens(
            (tokens, ceil_div(num_groups, groups)),
            x,
            out,
            scales,
            x.stride(0),
            scales.stride(0),
            scales.stride(1),
            k_size=k,
            columns=columns,
            block=block,
            groups=groups,
            smallest=_SMALLEST_SCALE,
            fp8_max=FP8_MAX,
            num_warps=min(max(groups * block // 512, 1), 16),
        )
    return out, scales


@triton.jit
def e4m3_bits_to_float16(bits: Value) -> Value:
    """The numbers times 2^-8 of the bits (uint8) of e4m3 numbers, exactly; NaN becomes a number."""
    wide = bits.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def load_inputs(
    x_ptrs: Value, row_mask: Value, first: Value, inner: Value, k_size: constexpr, block_k: constexpr
) -> Value:
    """Columns from `first` on of rows of k_size inputs; 0 where a row is none, and beyond k_size."""
    if k_size % block_k == 0:
        return tl.load(x_ptrs + first, mask=row_mask[:, None], other=0.0)
    return tl.load(x_ptrs + first, mask=row_mask[:, None] & (inner < k_size - first)[None, :], other=0.0)


@triton.jit
def load_weights(w_ptrs: Value, first: Value, inner: Value, k_size: constexpr, block_k: constexpr) -> Value:
    """Columns from `first` on of rows of k_size weights, transposed; 0 beyond k_size."""
    if k_size % block_k == 0:
        return tl.load(w_ptrs + first)
    return tl.load(w_ptrs + first, mask=(inner < k_size - first)[:, None], other=0.0)


@triton.jit
def scaled_product(
    x_rows: Value,
    x_scale_rows: Value,
    weight_rows: Value,
    scale_rows: Value,
    row_mask: Value,
    k_size: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    one_scale: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> Value:
    """float32[block_m, block_n]: the product of rows of inputs and rows of float8 weights, with their scales.

    The first four arguments point to the first element of each row, scale_rows of a single one where all rows of
    weights share it (`one_scale`). row_mask: which rows of inputs there are. With `quantized_x`, inputs and weights are
    e4m3; otherwise inputs are not quantised and weights are the bits of e4m3. `scale_columns` is a multiple of block_k,
    or k_size.
    """
    inner = tl.arange(0, block_k)
    x_ptrs = x_rows[:, None] + inner[None, :]
    w_ptrs = weight_rows[None, :] + inner[:, None]
    num_groups = (k_size + scale_columns - 1) // scale_columns
    acc = tl.zeros([block_m, block_n], tl.float32)
    for first in range(0, k_size, block_k):
        x = load_inputs(x_ptrs, row_mask, first, inner, k_size, block_k)
        w = load_weights(w_ptrs, first, inner, k_size, block_k)
        if not quantized_x:
            w = e4m3_bits_to_float16(w).to(x.dtype)
        if interpreted:
            x, w = x.to(tl.float32), w.to(tl.float32)
        if quantized_x or num_groups > 1:  # float8 products are added up outside the unit, which adds imprecisely
            product = tl.dot(x, w, input_precision="tf32x3")
            if num_groups > 1:
                group = first // scale_columns
                product = _with_scales(product, x_scale_rows, scale_rows, group, quantized_x, one_scale)
            acc += product
        else:
            acc = tl.dot(x, w, acc=acc, input_precision="tf32x3")
    if num_groups == 1:
        acc = _with_scales(acc, x_scale_rows, scale_rows, 0, quantized_x, one_scale)
    if not quantized_x:
        acc *= 256.0
    return acc


@triton.jit
def _with_scales(
    product: Value,
    x_scale_rows: Value,
    scale_rows: Value,
    group: Value,
    quantized_x: constexpr,
    one_scale: constexpr,
) -> Value:
    """A product times the scales of a group of columns."""
    scale = tl.load(scale_rows + group)
    if not one_scale:
        product *= scale[None, :]
    if quantized_x:
        x_scale = tl.load(x_scale_rows + group)
        if one_scale:
            x_scale *= scale
        product *= x_scale[:, None]
    elif one_scale:
        product *= scale
    return product


@triton.jit(do_not_specialize=["num_tokens"])
def fp8_gemm_kernel(
    x_ptr: Value,
    x_scales_ptr: Value,
    weight_ptr: Value,
    scales_ptr: Value,
    out_ptr: Value,
    num_tokens: Value,
    x_stride: Value,
    n_size: constexpr,
    k_size: constexpr,
    scale_rows: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    tiles_down: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes block_m tokens of block_n outputs; see `scaled_product`.

    Programs that run at the same time share tokens and weights, which then come from the L2 cache: their order goes
    down `tiles_down` tiles of tokens before the next tile of outputs.
    """
    num_right, num_down = (n_size + block_n - 1) // block_n, (num_tokens + block_m - 1) // block_m
    band, place = tl.program_id(0) // (tiles_down * num_right), tl.program_id(0) % (tiles_down * num_right)
    height = tl.minimum(num_down - band * tiles_down, tiles_down)
    tokens = (band * tiles_down + place % height) * block_m + tl.arange(0, block_m).to(tl.int64)
    first_output = place // height * block_n
    outputs = first_output + tl.arange(0, block_n)
    num_groups = (k_size + scale_columns - 1) // scale_columns
    # Outputs beyond the last are computed as the last, and not stored.
    known_tokens = tl.minimum(tokens, num_tokens - 1)
    known_outputs = outputs if n_size % block_n == 0 else tl.minimum(outputs, n_size - 1)
    one_scale: constexpr = scale_rows % block_n == 0
    scaled_rows = first_output if one_scale else known_outputs
    acc = scaled_product(
        x_ptr + known_tokens * x_stride, x_scales_ptr + known_tokens * num_groups,
        weight_ptr + known_outputs.to(tl.int64) * k_size, scales_ptr + scaled_rows // scale_rows * num_groups,
        tokens < num_tokens, k_size, scale_columns, quantized_x, one_scale, block_m, block_n, block_k, interpreted,
    )  # fmt: skip
    mask = (tokens < num_tokens)[:, None] & (outputs < n_size)[None, :]
    tl.store(out_ptr + tokens[:, None] * n_size + outputs[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


launch_fp8_gemm = Launcher(fp8_gemm_kernel)


class Tile(NamedTuple):
    """What a program multiplies at a time, its warps, and the stages of its pipeline."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def gemm_tile(num_tokens: int, scale_columns: int, element_bytes: int) -> Tile:
    """The tile for so many tokens of inputs with `element_bytes`.

    Few tokens in float8 wait for weights: many small programs with more loads in flight (H100: 20 to 25 % less time
    than 64 columns and 3 stages). From 512 on, 128 columns share what is loaded (H100: 8 to 22 % less time).
    """
    block_m = min(max(next_power_of_2(max(1, num_tokens)), 16), 64)
    block_n, num_stages = 64, 3
    if element_bytes == 1 and num_tokens <= 64:
        block_n, num_stages = 32, 5
    elif element_bytes == 1 and num_tokens >= 512:
        block_n = 128
    return Tile(block_m, block_n, inner_block(scale_columns, element_bytes), 4, num_stages)


def inner_block(scale_columns: int, element_bytes: int) -> int:
    """Columns that a program multiplies at a time: 128 bytes of a row, and no more than share a scale."""
    return min({1: 128, 2: 64, 4: 32}[element_bytes], next_power_of_2(scale_columns))


def fp8_gemm(x: Tensor, x_scales: Tensor | None, weight: Tensor, scales: Tensor, block: Block, out: Tensor) -> None:
    """Write `x @ weight.T` to `out`, [T, N]; x is e4m3 with `x_scales`, or of another dtype without. Triton."""
    num_tokens, (n, k) = x.shape[0], weight.shape
    columns = min(block[1], k)
    tile = gemm_tile(num_tokens, columns, x.element_size())
    launch_fp8_gemm(
        (ceil_div(n, tile.block_n) * ceil_div(num_tokens, tile.block_m),),
        x,
        scales if x_scales is None else x_scales,
        weight if x_scales is not None else weight.view(torch.uint8),
        scales,
        out,
        num_tokens,
        x.stride(0),
        n_size=n,
        k_size=k,
        scale_rows=block[0],
        scale_columns=columns,
        quantized_x=x_scales is not None,
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=tile.block_k,
        tiles_down=_TILES_DOWN,
        interpreted=INTERPRETED,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


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
