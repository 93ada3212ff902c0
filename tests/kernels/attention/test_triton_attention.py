"""Triton's attention kernels against the naive loop, on odd shapes; outputs and unused slots hold NaN at first."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels.attention.decode import decode_attention  # noqa: E402
from kernels.attention.latent import latent_attention, one_token_each  # noqa: E402
from kernels.attention.prefill import prefill_attention  # noqa: E402
from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from kernels.attention.triton_backend import TritonBackend  # noqa: E402
from kernels.cache.kv_integers import INT4_DTYPE, INT8_DTYPE  # noqa: E402
from kernels.cache.layer_kv import LayerKV  # noqa: E402
from tests.kernels.builders import Case, Shape, in_float8, in_integers, make_case, naive_attention, tolerance  # noqa: E402
from tests.selection import few  # noqa: E402

BF16 = torch.bfloat16
SHAPES = [
    Shape(1, 2, 1, 64),
    Shape(5, 3, 3, 96),
    Shape(16, 4, 2, 64, BF16),
    Shape(17, 16, 1, 64),
    Shape(256, 5, 1, 128, BF16),
    Shape(64, 6, 2, 256),
]


def decode(case: Case, splits: int | None) -> torch.Tensor:
    meta = case.metadata
    case.stored()
    out = torch.full_like(case.q, torch.nan)
    tables, bound = meta.decode_block_tables, meta.max_decode_context
    decode_attention(case.q, case.kv, meta.decode_context_lens, tables, case.scale, bound, out, splits)
    return out.cpu().float()


@pytest.mark.parametrize(
    ("splits", "shape"),
    [
        pytest.param(splits, shape, marks=[pytest.mark.slow] if (i + splits // 2) % 2 else [])
        for splits in (1, 3)
        for i, shape in enumerate(SHAPES)
    ],
    ids=str,
)
def test_decode(triton_device: str, splits: int, shape: Shape) -> None:
    edge = shape.block_size if shape.block_size <= 64 else 64
    case = make_case(shape, [], [0, 1, edge - 1, edge, edge + 1, 129], triton_device)
    expected = naive_attention(case)
    torch.testing.assert_close(decode(case, splits), expected, atol=tolerance(shape.dtype), rtol=0)


def test_decode_long_context_in_many_splits(triton_device: str) -> None:
    """Eleven splits of 128 tokens; the join kernel handles eight splits per iteration."""
    case = make_case(Shape(7, 8, 1, 64), [], [1403, 40], triton_device)
    torch.testing.assert_close(decode(case, 11), naive_attention(case), atol=2e-5, rtol=0)


def test_decode_takes_padding_only(triton_device: str) -> None:
    case = make_case(Shape(4, 2, 1, 64), [], [0, 0], triton_device)
    for splits in (1, 2):
        assert decode(case, splits).abs().max() == 0


@pytest.mark.parametrize("shape", few(SHAPES[1:4], 2), ids=str)
def test_step_of_chunks_and_decodes(triton_device: str, shape: Shape) -> None:
    """Prefills: first chunks, a later chunk, and one new token after a cached prefix. Then decodes and padding."""
    edge = min(shape.block_size, 32)
    prefills = [(1, 1), (edge + 1, edge + 1), (70, 9), (66, 1), (33, 32)]
    case = make_case(shape, prefills, [edge, 0], triton_device)
    expected = naive_attention(case)
    out = torch.full_like(case.q, torch.nan)
    TritonBackend().forward(case.q, case.stored(), case.metadata, case.scale, out)
    torch.testing.assert_close(out.cpu().float(), expected, atol=tolerance(shape.dtype), rtol=0)


def test_windows_and_sinks(triton_device: str) -> None:
    """In one split and in two: some queries see few keys of the first split, which alone has the sinks."""
    case = make_case(Shape(7, 4, 2, 12), [(150, 5)], [0, 5, 150], triton_device)
    meta, kv, first = case.metadata, case.stored(), case.metadata.num_prefill_tokens
    sinks = torch.linspace(-3, 4, 4, device=triton_device)
    for seen, splits in ((20, 1), (1, 1), (140, 2)):
        out = torch.full_like(case.q, torch.nan)
        prefill_attention(
            case.q[:first], kv, meta.cu_seqlens_q, meta.prefill_context_lens, meta.prefill_block_tables, case.scale,
            meta.max_seqlen_q, meta.max_prefill_context, out[:first], splits, seen, sinks,
        )  # fmt: skip
        decode_attention(
            case.q[first:], kv, meta.decode_context_lens, meta.decode_block_tables, case.scale,
            meta.max_decode_context, out[first:], splits, seen, sinks,
        )  # fmt: skip
        torch.testing.assert_close(out.cpu(), naive_attention(case, seen, sinks), atol=2e-5, rtol=0)


def test_latent_attention(triton_device: str, heads: int = 5, rank: int = 20, rope: int = 6) -> None:
    """Chunks, decodes and padding, in one split and in two, against attention whose values are parts of its keys."""
    width = rank + rope
    case = make_case(Shape(7, heads, 1, width), [(140, 4)], [0, 8, 140], triton_device)
    latents, meta = case.stored().keys, case.metadata
    case.v_cache.copy_(latents)
    expected = naive_attention(replace(case, v=case.k))[..., :rank]
    kv, first = LayerKV(latents, latents[..., :rank]), meta.num_prefill_tokens
    outs = [torch.full_like(expected, torch.nan).to(triton_device) for _ in range(3)]
    TorchBackend().forward(case.q, kv, meta, case.scale, outs[0])
    TritonBackend().forward(case.q, kv, meta, case.scale, outs[1])
    latent_attention(
        case.q[:first], kv, meta.cu_seqlens_q, meta.prefill_context_lens, meta.prefill_block_tables, case.scale,
        meta.max_seqlen_q, meta.max_prefill_context, outs[2][:first], 2,
    )  # fmt: skip
    latent_attention(
        case.q[first:], kv, one_token_each(meta.decode_context_lens), meta.decode_context_lens,
        meta.decode_block_tables, case.scale, 1, meta.max_decode_context, outs[2][first:], 2,
    )  # fmt: skip
    for out in outs:
        torch.testing.assert_close(out.cpu(), expected, atol=2e-5, rtol=0)


def test_prefill_longer_than_a_tile(triton_device: str) -> None:
    case = make_case(Shape(16, 2, 1, 64), [(150, 140), (131, 131)], [], triton_device)
    expected = naive_attention(case)
    q = torch.cat((case.q, case.q), dim=1)[:, :2]
    assert not q.is_contiguous()
    out = TritonBackend().forward(q, case.stored(), case.metadata, case.scale)
    torch.testing.assert_close(out.cpu().float(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("shape", [Shape(7, 3, 3, 96), Shape(256, 8, 1, 128)], ids=str)
def test_float8_cache(triton_device: str, shape: Shape) -> None:
    """Chunks and decodes over a float8 cache that the reference has filled; every head has another scale."""
    case, scales, expected = in_float8(make_case(shape, [(40, 9), (17, 17)], [0, 33, 129], triton_device))
    meta, kv = case.metadata, case.stored(scales)
    out, first = torch.full_like(case.q, torch.nan), meta.num_prefill_tokens
    prefill_attention(
        case.q[:first], kv, meta.cu_seqlens_q, meta.prefill_context_lens, meta.prefill_block_tables, case.scale,
        meta.max_seqlen_q, meta.max_prefill_context, out[:first],
    )  # fmt: skip
    for splits in (1, 2):
        decode_attention(
            case.q[first:], kv, meta.decode_context_lens, meta.decode_block_tables, case.scale,
            meta.max_decode_context, out[first:], splits,
        )  # fmt: skip
        torch.testing.assert_close(out.cpu(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("shape", "dtype"), [(Shape(16, 4, 2, 64), INT8_DTYPE), (Shape(7, 3, 3, 12), INT4_DTYPE)], ids=str
)
def test_cache_of_integers(triton_device: str, shape: Shape, dtype: torch.dtype) -> None:
    case, expected = in_integers(make_case(shape, [(40, 9), (17, 17)], [0, 33, 129], triton_device), dtype)
    out = torch.full_like(case.q, torch.nan)
    TritonBackend().forward(case.q, case.stored(), case.metadata, case.scale, out)
    torch.testing.assert_close(out.cpu(), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize(("group", "splits"), [pytest.param(1, 3, marks=pytest.mark.slow), (5, 3), (16, 2)])
def test_short_chunks_after_long_prefixes(triton_device: str, group: int, splits: int) -> None:
    """Tiles of (token, query head) pairs; some queries see no key of a split, and some splits have no keys."""
    case = make_case(Shape(16, group, 1, 16), [(140, 3), (129, 5 if group > 5 else 9), (5, 1)], [], triton_device)
    meta = case.metadata
    case.stored()
    out = torch.full_like(case.q, torch.nan)
    prefill_attention(
        case.q, case.kv, meta.cu_seqlens_q, meta.prefill_context_lens, meta.prefill_block_tables, case.scale,
        meta.max_seqlen_q, meta.max_prefill_context, out, splits,
    )  # fmt: skip
    torch.testing.assert_close(out.cpu(), naive_attention(case), atol=2e-5, rtol=0)
