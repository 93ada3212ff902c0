"""Thresholds found by search against those found by sorting, with ties, masked logits and limits at their edges."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels.sampling.keep_threshold import keep_threshold_triton  # noqa: E402
from kernels.sampling.sampler import keep_threshold  # noqa: E402

INFINITY = float("inf")
TOP_K = [0, 1, 2, 3, 7, 50, 4000, 10**6]
TOP_P = [0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]
NUM_ROWS = 8


def by_definition(row: torch.Tensor, temperature: float, k: int, p: float) -> float:
    """The threshold in float64, by a loop over the different logits from the largest down."""
    values, counts = row.double().unique(sorted=True, return_counts=True)
    values, counts = values.flip(0).tolist(), counts.flip(0).tolist()
    kept, seen = [], 0
    for value, count in zip(values, counts, strict=True):
        if k > 0 and seen >= min(k, len(row)):
            break
        kept.append((value, count))
        seen += count
    lowest = kept[-1][0] if k > 0 else -INFINITY
    if p >= 1:
        return lowest
    heat = temperature if temperature > 0 else 1.0
    weights = [torch.tensor((value - values[0]) / heat).double().exp().item() * count for value, count in kept]
    before, total = 0.0, sum(weights)
    for (value, _), weight in zip(kept, weights, strict=True):
        if before >= p * total and before > 0:
            break
        threshold, before = value, before + weight
    return max(lowest, threshold)


def cases(vocabulary: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(NUM_ROWS, vocabulary, generator=generator) * 4
    if kind == "ties":
        logits = logits.round()
        logits[:, ::3] = -0.0
    elif kind == "masked":
        logits[torch.rand(logits.shape, generator=generator) < 0.7] = -INFINITY
        logits[:, vocabulary // 2] = 30.0
    return logits.to(dtype)


@pytest.mark.parametrize(
    ("kind", "vocabulary", "dtype"),
    [
        ("random", 1, torch.bfloat16),
        ("ties", 1100, torch.bfloat16),
        ("masked", 1100, torch.float32),
        *(
            pytest.param(kind, vocabulary, dtype, marks=pytest.mark.slow)
            for kind, vocabulary, dtype in [
                ("random", 1, torch.float32),
                ("ties", 37, torch.float32),
                ("ties", 37, torch.bfloat16),
                ("random", 1100, torch.float32),
                ("random", 1100, torch.bfloat16),
                ("ties", 1100, torch.float32),
                ("masked", 1100, torch.bfloat16),
            ]
        ),
    ],
)
def test_threshold(triton_device: str, kind: str, vocabulary: int, dtype: torch.dtype) -> None:
    """Every limit in some row, alone in three of them; the rows are slices of a wider tensor."""
    # The search takes twice as long in float32.
    rows = torch.arange(NUM_ROWS if dtype == torch.bfloat16 else NUM_ROWS // 2)
    logits = cases(vocabulary, dtype, kind)[: len(rows)]
    turn = vocabulary + len(kind)
    top_k = torch.tensor(TOP_K, dtype=torch.int32)[(rows + turn) % len(TOP_K)]
    top_p = torch.tensor(TOP_P)[(rows * 3 + turn) % len(TOP_P)]
    temperature = torch.tensor([1.0, 0.3, 2.0, 0.0])[rows % 4]
    wide = torch.cat((logits, torch.full((len(logits), 3), 99.0).to(dtype)), dim=1).to(triton_device)[:, :vocabulary]
    on_device = [x.to(triton_device) for x in (temperature, top_k, top_p)]
    found = keep_threshold_triton(wide, *on_device)
    assert found is not None
    for row, got in enumerate(found.cpu().tolist()):
        expected = by_definition(logits[row], float(temperature[row]), int(top_k[row]), float(top_p[row]))
        assert got == expected, (row, float(temperature[row]), int(top_k[row]), float(top_p[row]))
    if vocabulary > 1000 and (kind == "random" or dtype == torch.float32):
        return
    for use_k, use_p in ((True, False), (False, True)):
        limits = on_device[1][:3] if use_k else None, on_device[2][:3] if use_p else None
        alone = keep_threshold_triton(wide[:3], on_device[0][:3], *limits)
        reference = keep_threshold(wide[:3].float(), on_device[0][:3], *limits, vocabulary)
        assert alone is not None and reference is not None
        if use_k:
            assert torch.equal(alone, reference)
        else:  # the reference adds in float32, and may keep a token more or less where the sum is next to top_p
            kept = [(wide[:3].float() >= x[:, None]).sum(1) for x in (alone, reference)]
            assert int((kept[0] != kept[1]).sum()) <= 1


def test_odd_rows(triton_device: str) -> None:
    """Only -inf, infinity, NaN, equal logits, and a limit that is exactly a sum: the token after it is not kept."""
    logits = torch.full((5, 8), -INFINITY)
    logits[1, 3], logits[1, 4] = INFINITY, 5.0
    logits[2, :4] = torch.tensor([torch.nan, 2.0, 1.0, 3.0])
    logits[3] = 1.5
    logits[4] = 0.0
    top_k = torch.tensor([3, 1, 2, 1, 0], dtype=torch.int32)
    top_p = torch.tensor([0.5, 0.5, 1.0, 0.5, 0.25])
    arguments = [x.to(triton_device) for x in (logits, torch.ones(5), top_k, top_p)]
    found = keep_threshold_triton(*arguments)
    assert found is not None and found.tolist() == [-INFINITY, INFINITY, 2.0, 1.5, 0.0]
    halves = torch.tensor([[0.5, 0.25, 0.25]], device=triton_device).log2() * 0.6931471805599453
    for p, kept in ((0.5, 1), (0.5000001, 3), (0.49, 1)):
        threshold = keep_threshold_triton(halves, arguments[1][:1], None, torch.tensor([p], device=triton_device))
        assert threshold is not None and int((halves >= threshold[:, None]).sum()) == kept


def test_without_limits_and_rows(triton_device: str) -> None:
    x = torch.zeros(0, 5, device=triton_device)
    assert keep_threshold_triton(x, x[:, 0], None, None) is None
    found = keep_threshold_triton(x, x[:, 0], None, x[:, 0])
    assert found is not None and found.shape == (0,)
