"""Edits of logits and log probabilities, against loops over single numbers."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.sampling.logit_edits import LogitEdits, edit_logits, token_logprobs  # noqa: E402
from kernels.sampling.sampler import keep_threshold  # noqa: E402

ROWS, VOCABULARY = 6, 40


def make_logits(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)


def some_pairs(rng: random.Random) -> torch.Tensor:
    pairs = [(row, token) for row in range(ROWS) for token in range(VOCABULARY) if rng.random() < 0.2]
    return torch.tensor(pairs).reshape(-1, 2).T


def no_edits() -> LogitEdits:
    rows, pairs = torch.zeros(0, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64)
    return LogitEdits(rows, pairs, pairs, pairs, torch.zeros(0), pairs, torch.zeros(3, 0), rows, torch.zeros(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_edits_are_made_in_order(seed: int, dtype: torch.dtype) -> None:
    rng, logits = random.Random(seed), make_logits(seed, dtype)
    allowed, forbidden, biased, penalised = (some_pairs(rng) for _ in range(4))
    allowed = allowed[:, allowed[0] < 2]
    biases = torch.randn(biased.shape[1])
    penalties = torch.rand(3, penalised.shape[1]) + 0.5
    min_p_rows, min_p = torch.tensor([1, 4]), torch.tensor([0.3, 0.05])
    temperature = torch.tensor([0.0, 0.7, 1.0, 0.0, 2.0, 1.0])
    edits = LogitEdits(
        torch.tensor([0, 1]), allowed, forbidden, biased, biases, penalised, penalties, min_p_rows, min_p
    )
    before = logits.clone()
    edited = edit_logits(logits, temperature, edits)
    assert edited.dtype == torch.float32 and torch.equal(logits, before)

    wanted = before.float()
    kept = set(map(tuple, allowed.T.tolist()))
    for row in range(ROWS):
        for token in range(VOCABULARY):
            if row < 2 and (row, token) not in kept:
                wanted[row, token] = -math.inf
    for row, token in forbidden.T.tolist():
        wanted[row, token] = -math.inf
    for (row, token), bias in zip(biased.T.tolist(), biases, strict=True):
        wanted[row, token] += bias
    for (row, token), (factor, frequency, presence) in zip(penalised.T.tolist(), penalties.T, strict=True):
        value = wanted[row, token]
        wanted[row, token] = (value / factor if value > 0 else value * factor) - frequency - presence
    for row, share in zip(min_p_rows.tolist(), min_p, strict=True):
        chances = (wanted[row] / temperature[row]).softmax(0)
        wanted[row][chances < share * chances.max()] = -math.inf
    assert torch.equal(edited, wanted)
    assert edited.isneginf().sum() > forbidden.shape[1]


def test_no_edits_keep_the_logits() -> None:
    logits = make_logits(0)
    assert torch.equal(edit_logits(logits, torch.ones(ROWS), no_edits()), logits)


@pytest.mark.parametrize("seed", range(5))
def test_top_k_and_top_p_apply_to_what_min_p_keeps(seed: int) -> None:
    logits, temperature = make_logits(seed), torch.full((ROWS,), 0.8)
    min_p, top_k, top_p = 0.05, 7, 0.75
    edits = no_edits()
    edits = LogitEdits(**{**vars(edits), "min_p_rows": torch.arange(ROWS), "min_p": torch.full((ROWS,), min_p)})
    edited = edit_logits(logits, temperature, edits)
    lowest = keep_threshold(
        edited, temperature, torch.full((ROWS,), top_k, dtype=torch.int32), torch.full((ROWS,), top_p), VOCABULARY
    )
    assert lowest is not None
    for row in range(ROWS):
        chances = (logits[row] / 0.8).softmax(0).tolist()
        kept = sorted((t for t in range(VOCABULARY) if chances[t] >= min_p * max(chances)), key=lambda t: -chances[t])
        kept = kept[:top_k]
        total, before, nucleus = sum(chances[t] for t in kept), 0.0, set()
        for token in kept:
            if before < top_p * total:
                nucleus.add(token)
            before += chances[token]
        assert set((edited[row] >= lowest[row]).nonzero().squeeze(1).tolist()) == nucleus


@pytest.mark.parametrize("num_top", [0, 3, 1 << 62])
def test_logprobs_and_ranks(num_top: int) -> None:
    logits = make_logits(1)
    logits[2, :5] = 9.0  # five equally likely tokens
    tokens = torch.tensor([0, 39, 3, 7, 7, 12])
    found = token_logprobs(logits, tokens, num_top)
    exact = logits.double().log_softmax(-1)
    assert found.top.shape == found.top_ids.shape == (ROWS, min(num_top, VOCABULARY))
    for row, token in enumerate(tokens.tolist()):
        assert float(found.chosen[row]) == pytest.approx(float(exact[row, token]), abs=1e-5)
        assert int(found.ranks[row]) == sum(value >= exact[row, token] for value in exact[row])
        assert torch.allclose(exact[row, found.top_ids[row]].float(), found.top[row], atol=1e-5)
        assert found.top[row].tolist() == sorted(found.top[row].tolist(), reverse=True)
    assert int(found.ranks[2]) == 5
