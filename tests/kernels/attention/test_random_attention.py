"""Triton's attention kernels against the naive loop in float64, on random shapes, steps, caches and splits."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels.attention import prefill  # noqa: E402
from kernels.attention.decode import decode_attention  # noqa: E402
from kernels.attention.prefill import prefill_attention  # noqa: E402
from kernels.cache.kv_integers import INT4_DTYPE, INT8_DTYPE  # noqa: E402
from kernels.cache.kv_store import FP8_DTYPE  # noqa: E402
from tests.kernels.builders import Case, Shape, in_float8, in_integers, make_case, naive_attention, tolerance  # noqa: E402

CASES_PER_SEED = 10
CACHES = [torch.float32, torch.bfloat16, FP8_DTYPE, INT8_DTYPE, INT4_DTYPE]


def random_shape(rng: random.Random, cache: torch.dtype) -> Shape:
    kv_heads, group = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 5, 8, 16, 17])
    block_size = rng.choice([1, 2, 5, 16, 16, 17, 64, 256])
    head_dim = rng.choice([4, 12, 16, 64, 80, 96, 128, 128, 192, 256])
    return Shape(block_size, kv_heads * group, kv_heads, head_dim, cache if cache == torch.bfloat16 else torch.float32)


def random_context(rng: random.Random) -> int:
    return rng.choice([1, rng.randint(1, 40), rng.randint(120, 140), rng.randint(1, 400)])


def stored(case: Case, cache: torch.dtype) -> tuple[Case, torch.Tensor | None, torch.Tensor]:
    """(the case with this cache, which has the step's own keys and values too; its scales; the expected attention)."""
    scales = None
    if cache == FP8_DTYPE:
        case, scales, expected = in_float8(case)
    elif cache in (INT8_DTYPE, INT4_DTYPE):
        case, expected = in_integers(case, cache)
    else:
        expected = naive_attention(case)
    case.stored(scales)
    return case, scales, expected


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_decode(triton_device: str, seed: int, cache: torch.dtype) -> None:
    for number in range(CASES_PER_SEED):
        rng = random.Random(f"decode {seed} {number} {cache}")
        contexts = [rng.choice([0, random_context(rng)]) for _ in range(rng.randint(1, 4))]
        case = make_case(random_shape(rng, cache), [], contexts, triton_device, number)
        case, scales, expected = stored(case, cache)
        meta, splits = case.metadata, rng.choice([None, 1, 2, 3, rng.randint(4, 12)])
        bound = meta.max_decode_context + rng.choice([0, 1, 1000])
        out = torch.full_like(case.q, torch.nan)
        decode_attention(
            case.q, case.kv._replace(scales=scales), meta.decode_context_lens, meta.decode_block_tables, case.scale,
            bound, out, splits,
        )  # fmt: skip
        label = f"case {number}: {case.shape}, contexts {contexts}, {splits} splits"
        torch.testing.assert_close(
            out.cpu().float(), expected, atol=tolerance(cache), rtol=0, msg=lambda text, label=label: label + text
        )


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_prefill(triton_device: str, monkeypatch: pytest.MonkeyPatch, seed: int, cache: torch.dtype) -> None:
    for number in range(CASES_PER_SEED):
        rng = random.Random(f"prefill {seed} {number} {cache}")
        contexts = [random_context(rng) for _ in range(rng.randint(1, 3))]
        chunks = [(context, rng.choice([1, rng.randint(1, min(context, 50))])) for context in contexts]
        case = make_case(random_shape(rng, cache), chunks, [], triton_device, number)
        case, scales, expected = stored(case, cache)
        meta, splits = case.metadata, rng.choice([None, 1, 2, 3, rng.randint(4, 12)])
        out = torch.full_like(case.q, torch.nan)
        capability = rng.choice([80, 89, 90, 100])
        if triton_device == "cpu":  # the interpreter runs what is chosen for any architecture
            monkeypatch.setattr(prefill, "device_limits", lambda _, chosen=capability: (chosen, 1))
        prefill_attention(
            case.q, case.kv._replace(scales=scales), meta.cu_seqlens_q, meta.prefill_context_lens,
            meta.prefill_block_tables, case.scale, meta.max_seqlen_q, meta.max_prefill_context, out, splits,
        )  # fmt: skip
        label = f"case {number}: {case.shape}, chunks {chunks}, {splits} splits, sm_{capability}"
        torch.testing.assert_close(
            out.cpu().float(), expected, atol=tolerance(cache), rtol=0, msg=lambda text, label=label: label + text
        )
