"""The sampler draws from the given distribution, and draws the same token for the same seed and position."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.sampling.sampler import log_exponential, sample  # noqa: E402

DRAWS = 60_000
# Critical values for 15 and 99 degrees of freedom: a right sampler exceeds them once in 100,000 tests.
CHI_SQUARE_15, CHI_SQUARE_99 = 50.5, 172.0


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities.double() * tokens.shape[0]
    return float(((tokens.bincount(minlength=len(expected)) - expected) ** 2 / expected).sum())


def draw(logits: torch.Tensor, temperature: float, vary: str, **limits: torch.Tensor | None) -> torch.Tensor:
    """DRAWS tokens of one distribution: with different seeds at one position, or one seed at different positions."""
    count, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 7)
    seeds, positions = (count, fixed) if vary == "seed" else (fixed, count)
    rows = logits.expand(DRAWS, -1)
    return sample(rows, torch.full((DRAWS,), temperature), limits.get("top_k"), limits.get("top_p"), seeds, positions)


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5])
def test_frequencies(vary: str, temperature: float) -> None:
    logits = torch.linspace(-1.5, 1.5, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    assert chi_square(draw(logits, temperature, vary), (logits / temperature).softmax(0)) < CHI_SQUARE_15


def test_consecutive_positions_are_independent() -> None:
    tokens = draw(torch.zeros(10), 1.0, "position")
    pairs = tokens[0::2] * 10 + tokens[1::2]
    assert chi_square(pairs, torch.full((100,), 0.01)) < CHI_SQUARE_99


def test_neighbouring_tokens_are_independent() -> None:
    """Which of two neighbouring tokens has more noise says nothing about the next two tokens."""
    noise = log_exponential(torch.arange(2000), torch.zeros(2000, dtype=torch.int64), 64)
    more = (noise[:, 0::2] > noise[:, 1::2]).long()
    pairs = (more[:, 0::2] * 2 + more[:, 1::2]).flatten()
    assert chi_square(pairs, torch.full((4,), 0.25)) < 25.0


def test_noise_is_exponential() -> None:
    noise = log_exponential(torch.arange(400), torch.arange(400), 1000).exp().flatten().double()
    assert bool(noise.isfinite().all()) and float(noise.min()) > 0
    assert abs(float(noise.mean()) - 1) < 0.01
    # The probability of noise below x is 1 - exp(-x).
    for x in (1e-4, 0.01, 0.5, 3.0):
        expected = -torch.expm1(torch.tensor(-x, dtype=torch.float64)) * noise.numel()
        assert abs(float((noise < x).sum() - expected)) < 5 * float(expected) ** 0.5


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (3, None, 3),
        (0, None, 8),
        (100, None, 8),
        (None, 0.7, 3),
        (None, 1.0, 8),
        (None, 0.0, 1),
        (4, 0.8, 3),
        (2, 1.0, 2),
    ],
)
def test_top_k_and_top_p(top_k: int | None, top_p: float | None, kept: int) -> None:
    """The `kept` most likely tokens are drawn in proportion to their probabilities; no other token is drawn."""
    chances = torch.tensor([0.4, 0.2, 0.15, 0.1, 0.05, 0.05, 0.03, 0.02])
    order = torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    logits = torch.empty(8)
    logits[order] = chances.log()
    limits = {
        "top_k": None if top_k is None else torch.full((DRAWS,), top_k, dtype=torch.int32),
        "top_p": None if top_p is None else torch.full((DRAWS,), top_p),
    }
    tokens = draw(logits, 1.0, "seed", **limits)
    ranks = order.argsort()[tokens]
    assert int(ranks.max()) == kept - 1
    if kept > 1:
        assert chi_square(ranks, chances[:kept] / chances[:kept].sum()) < CHI_SQUARE_15


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(9, 500, generator=generator)
    temperature = torch.tensor([0.0, 1.0, 0.5] * 3)
    top_k, top_p = torch.tensor([0, 5, 400] * 3, dtype=torch.int32), torch.tensor([1.0, 0.9, 0.3] * 3)
    seeds, positions = torch.arange(9) - 4, torch.arange(9) * 3
    arguments = (logits, temperature, top_k, top_p, seeds, positions)
    together = sample(*arguments)
    order = torch.randperm(9, generator=generator)
    assert torch.equal(sample(*(x[order] for x in arguments)), together[order])
    assert torch.equal(torch.cat([sample(*(x[i : i + 1] for x in arguments)) for i in range(9)]), together)
    assert not torch.equal(sample(*arguments[:4], seeds + 1, positions), together)
    assert not torch.equal(sample(*arguments[:4], seeds, positions + 1), together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_temperature_zero_is_the_most_likely_token(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    zeros = torch.zeros(5)
    tokens = sample(logits, zeros, torch.full((5,), 3, dtype=torch.int32), zeros + 0.5, zeros.long(), zeros.long())
    assert torch.equal(tokens, logits.float().argmax(-1))
