"""The experts that each token chooses, and their weights."""

from __future__ import annotations

from torch import Tensor

from kernels.runtime import Value, constexpr, tl, triton


def choose_experts(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """(weights float32[T, top_k], experts int64[T, top_k]) of each token, best first; of equal logits, the first wins.

    The weights are the softmax of the logits over all experts, in float32. `renormalize` divides the weights of a
    token's choices by their sum, which is the softmax over its choices alone.
    """
    logits = router_logits.float()
    experts = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = logits.softmax(dim=-1).gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts


@triton.jit
def choose(
    logits_ptr: Value,
    weights_ptr: Value,
    tokens: Value,
    experts: Value,
    num_tokens: Value,
    logits_stride: Value,
    num_experts: constexpr,
    top_k: constexpr,
    block_k: constexpr,
    renormalize: constexpr,
) -> Value:
    """(int32[tokens, experts]: which choice of the token the expert is, -1 for none; int32[tokens, block_k]: experts).

    Writes the weights. A key is a logit's bits, ordered as the logits are, NaN above all, before the expert's index, so
    that keys are unique and the maximum of the keys is the first expert with the largest logit.
    """
    is_token, is_expert = (tokens < num_tokens)[:, None], (experts < num_experts)[None, :]
    rows = logits_ptr + tokens.to(tl.int64)[:, None] * logits_stride
    x = tl.load(rows + experts[None, :], mask=is_token & is_expert, other=float("-inf")).to(tl.float32)
    x = tl.where(x == 0.0, 0.0, x)
    largest = tl.max(x, axis=1)[:, None]
    total = tl.sum(tl.where(is_expert, tl.exp(x - largest), 0.0), axis=1)
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)
    keys = (ordered.to(tl.int64) << 16) | (65535 - experts)[None, :]
    keys = tl.where(is_expert, keys, -(1 << 62))
    columns = tl.arange(0, block_k)[None, :]
    choice = tl.full([tokens.shape[0], experts.shape[0]], -1, tl.int32)
    found = tl.zeros([tokens.shape[0], block_k], tl.int32)
    logits = tl.zeros([tokens.shape[0], block_k], tl.float32)
    for i in tl.static_range(top_k):
        best = tl.max(keys, axis=1)[:, None]
        choice = tl.where((keys == best) & is_token, i, choice)
        keys = tl.where(keys == best, -(1 << 62), keys)
        high = (best >> 16).to(tl.int32)
        logit = (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        found = tl.where(columns == i, 65535 - (best & 65535).to(tl.int32), found)
        logits = tl.where(columns == i, logit, logits)
    weights = tl.where(columns < top_k, tl.exp(logits - largest), 0.0)
    if renormalize:
        total = tl.sum(weights, axis=1)
    places = tokens[:, None] * top_k + columns
    tl.store(weights_ptr + places, weights / total[:, None], mask=is_token & (columns < top_k))
    return choice, found
