"""Sampling by the Gumbel-max trick: argmax(logits / temperature + Gumbel noise) is a draw from the softmax.

The noise of a row is a hash of (seed, position, vocabulary index), equal on every device, so a request draws the same
tokens whatever else is in its batch.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton
from kernels.sampling.keep_threshold import keep_threshold_triton

# Odd multipliers of integer hashes: of splitmix64, from the golden ratio, and two of the kind that lowbias32 uses.
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
_POSITION = 0x9E3779B97F4A7C15 - (1 << 64)
_INDEX, _HASH_1, _HASH_2 = 0x9E3779B1 - (1 << 32), 0x21F0AAAD, 0x735A2D97

# A uniform is |h + 1/2| of a signed 32-bit hash h, scaled into (0, 1). Its values are densest near zero, where the
# Gumbel noise is largest.
UNIFORM_SCALE = 2.0**-31 * (1 - 2.0**-24)

_ROW_CHUNK_ELEMENTS = 1 << 18
# On the CPU, top-p first looks at the _TOP_P_CANDIDATES most likely tokens only. They are enough if their probabilities
# sum to top_p + _SUM_ERROR, which allows for rounding of the sum.
_TOP_P_CANDIDATES, _SUM_ERROR = 1024, 1e-4


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Sample one token per row -> int64[S].

    logits: [S, V], any float dtype. temperature: float32[S]; 0 takes the most likely token, the lowest id of equals;
    others must be large enough that float32 has room for the logits divided by them.
    top_k: int32[S], 0 is off; top_p: float32[S], 1 is off. Pass None if no row uses it, which saves a search on CUDA.
    seeds: int64[S]; positions: int64[S], the position of the token to sample.

    Top-k applies first, then top-p to the tokens that top-k keeps, at the row's temperature. Tokens with the same logit
    as the last token kept are kept too. On CUDA nothing synchronises and no shape depends on the data, so that sampling
    can be captured in a CUDA graph.
    """
    if runs_triton(logits):
        return sample_triton(logits, temperature, top_k, top_p, seeds, positions)
    return sample_reference(logits, temperature, top_k, top_p, seeds, positions)


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """PyTorch version of `sample`; reads the parameters on the host, so on a GPU it would synchronise."""
    drawn = (temperature > 0).nonzero().squeeze(1)
    if drawn.numel() == 0:
        return _argmax(logits)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if drawn.numel() < logits.shape[0]:
        greedy = (temperature <= 0).nonzero().squeeze(1)
        tokens[greedy] = _argmax(logits[greedy])
    for rows in drawn.split(max(1, _ROW_CHUNK_ELEMENTS // logits.shape[1])):
        wide, heat = logits[rows].float(), temperature[rows]
        scores = wide / heat.unsqueeze(1)
        threshold = _threshold_on_host(wide, heat, *(None if x is None else x[rows] for x in (top_k, top_p)))
        if threshold is not None:
            scores.masked_fill_(wide < threshold.unsqueeze(1), -torch.inf)
        tokens[rows] = _argmax(scores.sub_(log_exponential(seeds[rows], positions[rows], logits.shape[1])))
    return tokens


def _argmax(scores: Tensor) -> Tensor:
    """int64[S]: the index of each row's first maximum. On the CPU numpy finds it, ten times as fast as torch."""
    if scores.is_cuda:
        return scores.argmax(dim=-1)
    return torch.from_numpy(scores.detach().float().numpy().argmax(axis=-1))


def _threshold_on_host(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> Tensor | None:
    """`keep_threshold` with as few candidates as these rows need, because sorting the vocabulary is slow on the CPU."""
    vocabulary = logits.shape[1]
    width = 1
    if top_k is not None:
        width = int(top_k.clamp(max=vocabulary).max())
    if top_p is not None:
        unlimited = top_p < 1 if top_k is None else (top_p < 1) & (top_k <= 0)
        if bool(unlimited.any()):
            width = max(width, min(_TOP_P_CANDIDATES, vocabulary))
            chances = (logits[unlimited] / temperature[unlimited].unsqueeze(1)).softmax(dim=-1)
            found = chances.topk(width, dim=-1).values.sum(dim=-1)
            if bool((found < top_p[unlimited] + _SUM_ERROR).any()):
                width = vocabulary
    return keep_threshold(logits, temperature, top_k, top_p, max(width, 1))


def keep_threshold(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None, candidates: int
) -> Tensor | None:
    """float32[S]: the lowest logit that each row keeps after top-k and then top-p; None if both are None.

    logits: float32[S, V]; candidates: how many of the largest logits to look at, at least as many as any row can keep
    (V is always enough); the other arguments as in `sample`. A row that uses neither top-k nor top-p has a threshold of
    -inf. `kernels.sampling.keep_threshold` finds the same without sorting.
    """
    if top_k is None and top_p is None:
        return None
    if candidates < logits.shape[1]:
        ordered = logits.topk(candidates, dim=-1).values
    else:
        ordered = logits.sort(dim=-1, descending=True).values
    lowest = torch.full_like(ordered[:, 0], -torch.inf)
    heat = torch.where(temperature > 0, temperature, 1.0).unsqueeze(1)
    log_total = (logits / heat).logsumexp(dim=-1, keepdim=True)
    if top_k is not None:
        limited = top_k > 0
        last = torch.where(limited, top_k, candidates).clamp(max=candidates).long() - 1
        kth = ordered.gather(1, last.unsqueeze(1))
        lowest = torch.where(limited, kth.squeeze(1), lowest)
        ordered = torch.where(limited.unsqueeze(1) & (ordered < kth), -torch.inf, ordered)
        log_total = torch.where(limited.unsqueeze(1), (ordered / heat).logsumexp(dim=-1, keepdim=True), log_total)
    if top_p is not None:
        probabilities = (ordered / heat - log_total).exp()
        before = probabilities.cumsum(dim=-1) - probabilities
        kept = (before < top_p.unsqueeze(1)).sum(dim=-1, keepdim=True).clamp(min=1)
        pth = ordered.gather(1, kept - 1).squeeze(1)
        lowest = torch.where(top_p < 1, torch.maximum(pth, lowest), lowest)
    return lowest


def row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """int32[S, 2]: each row's key, a hash of its seed and position (splitmix64's finaliser, twice), in two halves."""
    mixed = _mix64(_mix64(seeds) + positions * _POSITION)
    return torch.stack((mixed, mixed >> 32), dim=1).to(torch.int32)


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@lru_cache(maxsize=4)
def _index_hashes(vocabulary: int, device: torch.device) -> Tensor:
    """int32[V]: the first step of the hash of each vocabulary index, which is the same for all rows."""
    x = torch.arange(1, vocabulary + 1, dtype=torch.int32, device=device) * _INDEX
    return x.bitwise_xor_(_shifted(x, 15))


def log_exponential(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """float32[S, V]: the logarithm of exponential noise, which is negated Gumbel noise."""
    key = row_keys(seeds, positions)
    x = _index_hashes(vocabulary, seeds.device) ^ key[:, :1]
    x.mul_(_HASH_1)
    x.bitwise_xor_(_shifted(x, 16)).add_(key[:, 1:]).mul_(_HASH_2)
    uniform = x.float().add_(0.5).abs_()
    return uniform.mul_(-UNIFORM_SCALE).log1p_().neg_().log_()


def _shifted(x: Tensor, bits: int) -> Tensor:
    """int32 `x` shifted right by `bits`, with zeros shifted in (a logical shift)."""
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


@triton.jit
def mix64(x: Value) -> Value:
    """splitmix64's finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def sample_block_kernel(
    logits_ptr: Value,
    temperature_ptr: Value,
    threshold_ptr: Value,
    seeds_ptr: Value,
    positions_ptr: Value,
    score_ptr: Value,
    token_ptr: Value,
    row_stride: Value,
    vocabulary: constexpr,
    block: constexpr,
    uniform_scale: constexpr,
    use_threshold: constexpr,
) -> None:
    """One program finds the best score of one row in one block of the vocabulary, and its token; NaN is never best."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block + tl.arange(0, block)
    inside = places < vocabulary
    logits = tl.load(logits_ptr + row * row_stride + places, mask=inside, other=float("-inf")).to(tl.float32)
    scores = logits
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        key = mix64(tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True))
        position = tl.load(positions_ptr + row).to(tl.uint64, bitcast=True)
        key = mix64(key + position * 0x9E3779B97F4A7C15)
        x = (places + 1).to(tl.uint32) * 0x9E3779B1
        x = (x ^ (x >> 15)) ^ key.to(tl.uint32)
        x *= 0x21F0AAAD
        x = (x ^ (x >> 16)) + (key >> 32).to(tl.uint32)
        x *= 0x735A2D97
        uniform = tl.abs(x.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * uniform_scale
        # -log(1 - u); for small u by its series, because 1 - u would lose digits.
        series = uniform * (1.0 + uniform * (0.5 + uniform * (0.3333333333 + uniform * 0.25)))
        exponential = tl.where(uniform < 0.01, series, -tl.log(1.0 - uniform))
        scores = logits / temperature - tl.log(exponential)
        if use_threshold:
            scores = tl.where(logits < tl.load(threshold_ptr + row), float("-inf"), scores)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where((scores == best) & inside, places, vocabulary), axis=0)
    slot = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(score_ptr + slot, best)
    tl.store(token_ptr + slot, token)


launch_sample_block = Launcher(sample_block_kernel)


@triton.jit
def sample_join_kernel(
    score_ptr: Value, token_ptr: Value, out_ptr: Value, blocks: constexpr, padded: constexpr, vocabulary: constexpr
) -> None:
    """One program finds the token of a row's best block, the lowest id of equals; 0 if all scores are NaN."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, padded)
    scores = tl.load(score_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    tokens = tl.load(token_ptr + row * blocks + block, mask=block < blocks, other=vocabulary)
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == best, tokens, vocabulary), axis=0)
    tl.store(out_ptr + row, tl.where(token < vocabulary, token, 0).to(tl.int64))


launch_sample_join = Launcher(sample_join_kernel)


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Triton version of `sample`."""
    rows, vocabulary = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows == 0:
        return out
    threshold = keep_threshold_triton(logits, temperature, top_k, top_p)
    block = min(next_power_of_2(vocabulary), 4096)
    blocks = ceil_div(vocabulary, block)
    scores = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    launch_sample_block(
        (rows, blocks),
        logits,
        temperature,
        temperature if threshold is None else threshold,
        seeds,
        positions,
        scores,
        tokens,
        logits.stride(0),
        vocabulary=vocabulary,
        block=block,
        uniform_scale=UNIFORM_SCALE,
        use_threshold=threshold is not None,
        num_warps=8,
    )
    padded = next_power_of_2(blocks)
    launch_sample_join((rows,), scores, tokens, out, blocks=blocks, padded=padded, vocabulary=vocabulary, num_warps=1)
    return out
