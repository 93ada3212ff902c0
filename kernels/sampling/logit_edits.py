"""What sampling parameters do to logits before a token is drawn, and log probabilities of the logits as they were.

The steps and their order are those of vLLM's sampler. Log probabilities are taken from the model's own logits. Then, in
float32: allowed tokens, forbidden tokens, biases, penalties (repetition, frequency, presence), temperature, min_p. The
last steps are those of `kernels.sampling.sampler`: top-k, top-p, and the draw.

Rows are sampled tokens. A row without an entry keeps its logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Array: TypeAlias = Any  # a numpy array on the host, a tensor on the device


@dataclass(frozen=True)
class LogitEdits:
    """Changes of single logits. A pair is (row, token); the pairs of one array differ from each other.

    Attributes:
        allowed_rows: int64[a], rows that sample only from the tokens in `allowed`.
        allowed: int64[2, b], their pairs.
        forbidden: int64[2, f], pairs that are not sampled.
        biased: int64[2, c], pairs whose logits change by `biases`.
        biases: float32[c].
        penalised: int64[2, p], pairs whose logits change by `penalties`.
        penalties: float32[3, p], for each pair the divisor of a positive logit (factor of others), then two numbers to
            subtract: the frequency penalty times the number of occurrences, and the presence penalty if there are any.
        min_p_rows: int64[m], rows that sample only from tokens whose probability is at least `min_p` times the largest;
            their temperature is above 0.
        min_p: float32[m].
    """

    allowed_rows: Array
    allowed: Array
    forbidden: Array
    biased: Array
    biases: Array
    penalised: Array
    penalties: Array
    min_p_rows: Array
    min_p: Array


class RowLogprobs(NamedTuple):
    """Log probabilities of a token in each of n rows, and of the k most likely tokens of the row.

    Attributes:
        chosen: float32[n], of the token.
        ranks: int64[n], number of tokens that are at least as likely as the token.
        top_ids: int64[n, k], the most likely tokens, the most likely first.
        top: float32[n, k], log probabilities of `top_ids`.
    """

    chosen: Array
    ranks: Array
    top_ids: Array
    top: Array


def edit_logits(logits: Tensor, temperature: Tensor, edits: LogitEdits) -> Tensor:
    """The changed logits, float32[S, V], a copy; logits: [S, V]; temperature: float32[S]."""
    out = logits.to(torch.float32, copy=True)
    if edits.allowed_rows.shape[0]:
        rows, tokens = edits.allowed
        kept = out[rows, tokens]
        out[edits.allowed_rows] = -torch.inf
        out[rows, tokens] = kept
    if edits.forbidden.shape[1]:
        rows, tokens = edits.forbidden
        out[rows, tokens] = -torch.inf
    if edits.biased.shape[1]:
        rows, tokens = edits.biased
        out[rows, tokens] += edits.biases
    if edits.penalised.shape[1]:
        rows, tokens = edits.penalised
        factor, frequency, presence = edits.penalties
        old = out[rows, tokens]
        out[rows, tokens] = torch.where(old > 0, old / factor, old * factor) - frequency - presence
    if edits.min_p_rows.shape[0]:
        rows = edits.min_p_rows
        chances = (out[rows] / temperature[rows].unsqueeze(1)).softmax(dim=-1)
        least = chances.amax(dim=-1, keepdim=True) * edits.min_p.unsqueeze(1)
        out[rows] = out[rows].masked_fill_(chances < least, -torch.inf)
    return out


def token_logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> RowLogprobs:
    """Log probabilities of `tokens`, int64[n], and of the `num_top` most likely tokens under `logits`, [n, V]."""
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens.unsqueeze(1))
    top, top_ids = logprobs.topk(min(num_top, logits.shape[1]), dim=-1)
    return RowLogprobs(chosen.squeeze(1), (logprobs >= chosen).sum(dim=-1), top_ids, top)
