"""Keys and values as integers of 8 and 4 bits: bounds of the round trip, and attention over what was stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from kernels.cache.kv_integers import (  # noqa: E402
    INT4_DTYPE,
    INT8_DTYPE,
    LARGEST,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    block_parts,
    dequantize_blocks,
    dequantize_integers,
    head_dim_of,
    quantize_blocks,
    quantize_integers,
    row_width,
)
from kernels.cache.kv_store import store_kv_reference  # noqa: E402
from kernels.cache.layer_kv import LayerKV  # noqa: E402
from tests.kernels.builders import Shape, in_integers, make_case  # noqa: E402

DTYPES = [INT8_DTYPE, INT4_DTYPE]


def round_trip(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dequantize_integers(*quantize_integers(x, dtype), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 33).map(lambda n: 2 * n)),
    magnitude=st.floats(-9, 4.9),
    seed=st.integers(0, 99),
)
def test_a_round_trip_errs_by_half_a_step_of_the_row(
    dtype: torch.dtype, shape: tuple[int, int, int], magnitude: float, seed: int
) -> None:
    """A step is the largest element of the row, over 127 or 7; rounding it to float16 adds 2^-11 of the element."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10.0**magnitude
    codes, scales = quantize_integers(x, dtype)
    assert codes.dtype == scales.dtype == dtype
    assert codes.shape[-1] + scales.shape[-1] == row_width(shape[-1], dtype)
    largest = x.abs().amax(-1, keepdim=True)
    step = (largest / LARGEST[dtype]).clamp(min=SMALLEST_SCALE)
    errors = (dequantize_integers(codes, scales, torch.float32) - x).abs()
    assert (errors <= step / 2 * 1.001 + largest * 2**-11).all()
    alone = [torch.cat(parts) for parts in zip(*(quantize_integers(row[None], dtype) for row in x), strict=True)]
    assert torch.equal(alone[0], codes) and torch.equal(alone[1], scales), "a row depends on no other token"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_no_scale_can_represent_is_clamped(dtype: torch.dtype) -> None:
    x = torch.tensor([[1e30, -1e9, 0.0, 1.0]])
    limit = LARGEST_SCALE * LARGEST[dtype]
    assert round_trip(x, dtype).tolist() == [[limit, -limit, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_and_zeros_are_exact(dtype: torch.dtype) -> None:
    largest = LARGEST[dtype]
    x = torch.arange(-largest, largest + 1).float().repeat_interleave(2)[None] / 4
    assert torch.equal(round_trip(x, dtype), x)
    assert not round_trip(torch.zeros(2, 3, 8), dtype).any()
    assert not dequantize_blocks(torch.zeros(5, 1, 2, row_width(8, dtype), dtype=dtype), torch.float32).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [Shape(16, 4, 2, 64), Shape(7, 3, 3, 6), Shape(1, 2, 1, 96)], ids=str)
def test_attention_over_a_cache_of_integers(shape: Shape, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    case, expected = in_integers(make_case(shape, [(40, 9), (17, 17)], [0, 33, 129, 16, 1]), dtype)
    out = TorchBackend().forward(case.q, case.stored(), case.metadata, case.scale)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_rows_do_not_depend_on_strides(dtype: torch.dtype, tokens: int, kv_heads: int) -> None:
    qkv = torch.randn(tokens, kv_heads + 3, 8)
    for x in (qkv[:, 1 : 1 + kv_heads], qkv[:1, :kv_heads], qkv[:, :kv_heads, :4], qkv.transpose(0, 1)):
        expected = quantize_integers(x.clone(memory_format=torch.contiguous_format), dtype)
        for part, same in zip(quantize_integers(x, dtype), expected, strict=True):
            assert torch.equal(part, same)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 16, 2, 8), (2, 1, 1, 6), (5, 3, 3, 12)], ids=str)
def test_a_block_has_all_its_integers_first(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape)
    blocks = quantize_blocks(x, dtype)
    assert blocks.is_contiguous() and head_dim_of(blocks) == shape[-1]
    codes, scales = quantize_integers(x, dtype)
    for block, own_codes, own_scales in zip(blocks, codes, scales, strict=True):
        in_order = torch.cat((own_codes.flatten(), own_scales.transpose(0, 1).flatten()))
        assert torch.equal(block.flatten(), in_order), "scales are ordered by KV head, then by token"
    assert torch.equal(dequantize_blocks(blocks, torch.float32), dequantize_integers(codes, scales, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_is_not_stored(dtype: torch.dtype) -> None:
    k, v = torch.randn(2, 3, 2, 8)
    caches = torch.zeros(2, 4, 2, 2, row_width(8, dtype), dtype=dtype)
    store_kv_reference(k, v, LayerKV(caches[0], caches[1]), torch.tensor([5, -1, 0]))
    for part, new in zip(block_parts(caches[0]), quantize_integers(k[[0, 2]], dtype), strict=True):
        rows = part.flatten(0, 1)
        assert torch.equal(rows[[5, 0]], new)
        assert int(rows.any(-1).any(-1).sum()) == 2
    before = caches.clone()
    kv = LayerKV(*(cache.view(16, 1, 1, -1) for cache in caches))
    store_kv_reference(k[:, :1], v[:, :1], kv, torch.full((3,), -1))
    assert torch.equal(caches, before)
