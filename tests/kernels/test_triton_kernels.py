"""The small Triton kernels, the sampler and the experts against their PyTorch references, on odd shapes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels import activation, decode_step, norm  # noqa: E402
from kernels.experts import moe  # noqa: E402
from kernels.sampling import sampler  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16]


def rounding(dtype: torch.dtype) -> dict[str, float]:
    """Tolerances for results that are both rounded to the dtype, perhaps in opposite directions."""
    return {"rtol": 1.6e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` returns NaN or a huge integer, so that elements that a kernel does not write are noticed."""
    torch.manual_seed(0)
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        out = empty(*args, **kwargs)
        return out.fill_(torch.nan if out.is_floating_point() else 1 << 30)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 96), (2, 1000)])
def test_rms_norm(triton_device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    wide = torch.randn(*shape[:-1], 2 * shape[-1], device=triton_device).to(dtype)
    x, weight = wide[..., : shape[-1]], torch.randn(shape[-1], device=triton_device).to(dtype)
    expected = norm.rms_norm_reference(x, weight, 1e-5)
    torch.testing.assert_close(norm.rms_norm_triton(x, weight, 1e-5), expected, **rounding(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 96, 1000])
def test_add_rms_norm(triton_device: str, dtype: torch.dtype, width: int) -> None:
    x, residual, weight = (torch.randn(n, width, device=triton_device).to(dtype) for n in (5, 5, 1))
    inputs = x.clone(), residual.clone()
    normed, total = norm.add_rms_norm_triton(x, residual, weight[0], 1e-6)
    expected_normed, expected_total = norm.add_rms_norm_reference(x, residual, weight[0], 1e-6)
    # The interpreter truncates to bfloat16 where compiled code rounds to nearest.
    torch.testing.assert_close(total, expected_total, **rounding(dtype))
    torch.testing.assert_close(normed, expected_normed, **rounding(dtype))
    assert torch.equal(x, inputs[0]) and torch.equal(residual, inputs[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 96, 1500])
def test_silu_and_mul(triton_device: str, dtype: torch.dtype, width: int) -> None:
    x = torch.randn(3, 2 * width, device=triton_device).to(dtype) * 4
    for clamp in (None, activation.Clamp(1.7, 2.0)):
        expected = activation.silu_and_mul_reference(x.float(), clamp).to(dtype)
        torch.testing.assert_close(activation.silu_and_mul_triton(x, clamp), expected, **rounding(dtype))


@pytest.mark.parametrize(("rows", "block_size"), [(1, 1), (1, 7), (5, 1), (5, 256), (300, 7)])
def test_decode_step(triton_device: str, rows: int, block_size: int) -> None:
    """`begin_decode` equals its reference; two calls of `end_decode` store the tokens of rows that are not padding."""
    generator = torch.Generator().manual_seed(rows)
    lengths = torch.randint(1, 3 * block_size + 1, (rows,), generator=generator)
    lengths[torch.arange(rows) % 4 == 2] = 0
    lengths[0] = block_size
    wide = torch.randint(0, 1 << 20, (rows, 6), generator=generator).to(torch.int32).to(triton_device)
    lengths, tables = lengths.to(triton_device), wide[:, :4]
    got = decode_step.begin_decode_triton(lengths, tables, block_size)
    for x, expected in zip(got, decode_step.begin_decode_reference(lengths, tables, block_size), strict=True):
        assert x.dtype == expected.dtype and torch.equal(x, expected)
    assert int(got[1][0]) == int(tables[0, 0]) * block_size + block_size - 1 and bool(
        (got[1] < 0).eq(got[2] == 0).all()
    )

    states = [[torch.arange(rows), lengths.cpu(), torch.full((4, rows + 3), -5), torch.tensor([1])] for _ in range(2)]
    states = [[x.clone().to(triton_device) for x in state] for state in states]
    for step in range(2):
        sampled = torch.arange(rows, device=triton_device) + 1000 * (step + 1)
        decode_step.end_decode_triton(sampled, *states[0])
        decode_step.end_decode_reference(sampled, *states[1])
    for x, expected in zip(*states, strict=True):
        assert torch.equal(x, expected)
    tokens, after, ring, cursor = (x.cpu() for x in states[0])
    live = lengths.cpu() > 0
    assert torch.equal(tokens, torch.arange(rows) + 2000 * live) and torch.equal(after, lengths.cpu() + 2 * live)
    assert (ring[[0, 3]] == -5).all() and torch.equal(ring[1, :rows][live], (torch.arange(rows) + 1000)[live])
    assert int(cursor) == 3


@pytest.mark.parametrize(
    ("dtype", "use_k", "use_p"),
    [
        (torch.float32, True, True),
        (torch.bfloat16, True, False),
        pytest.param(torch.bfloat16, False, True, marks=pytest.mark.slow),
        (torch.float32, False, False),
    ],
)
def test_sample(triton_device: str, dtype: torch.dtype, use_k: bool, use_p: bool) -> None:
    """The same tokens as the reference, for a vocabulary of several blocks, in greedy and in sampled rows."""
    rows, vocabulary = 4, 1100 if use_k and use_p else 4200
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(triton_device, dtype)
    temperature = (torch.arange(rows) * 0.4).to(triton_device)
    top_k = torch.arange(rows, dtype=torch.int32, device=triton_device) * 5 if use_k else None
    top_p = torch.linspace(0.0, 1.0, rows, device=triton_device) if use_p else None
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator).to(triton_device)
    positions = torch.arange(rows, device=triton_device) * 1000
    arguments = (logits, temperature, top_k, top_p, seeds, positions)
    assert sampler.sample_triton(*arguments).tolist() == sampler.sample_reference(*arguments).tolist()


def test_sample_greedy_takes_the_lowest_of_equals(triton_device: str) -> None:
    logits = torch.zeros(2, 9000, device=triton_device)
    logits[0, [4099, 8500]] = 1.0
    zeros = torch.zeros(2, device=triton_device)
    tokens = sampler.sample_triton(logits, zeros, None, None, zeros.long(), zeros.long())
    assert tokens.tolist() == [4099, 0]


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "dtype"),
    [
        (1, 8, 4, torch.float32),
        (5, 4, 2, torch.bfloat16),
        (37, 3, 1, torch.float32),
        (80, 2, 2, torch.bfloat16),  # in tiles of 128 rows
        *(pytest.param(3, 24, 8, dtype, marks=pytest.mark.slow) for dtype in DTYPES),
    ],
)
def test_fused_moe(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, tokens: int, experts: int, top_k: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(moe, "silu_and_mul", activation.silu_and_mul_triton)
    monkeypatch.setattr(moe, "_MANY_PAIRS", 64)
    hidden, width = 72, 40
    x, w13, w2 = (
        torch.randn(*shape, device=triton_device).to(dtype) / shape[-1] ** 0.5
        for shape in ((tokens, hidden), (experts, 2 * width, hidden), (experts, hidden, width))
    )
    logits = torch.randn(tokens, experts, device=triton_device)
    renormalize, biases = tokens != 5, None
    if tokens in (1, 5):
        b13, b2 = (torch.randn(experts, size, device=triton_device).to(dtype) for size in (2 * width, hidden))
        biases = moe.Biases(b13, b2, activation.Clamp(1.7, 1.0))
    expected = moe.fused_moe_reference(x, logits, w13, w2, top_k, renormalize, biases)
    got = moe.fused_moe_triton(x, logits, w13, w2, top_k, renormalize, biases)
    torch.testing.assert_close(got, expected, **rounding(dtype))
