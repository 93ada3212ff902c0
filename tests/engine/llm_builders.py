"""CUDA graphs without CUDA: the operators that a step launches are written down and launched again.

What a graph would freeze is frozen here too: the operators, their tensors and the numbers that the host passed. What
cannot be captured, a look at a tensor's values, is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from engine.runner.cuda_graphs import Step
from kernels.attention import AttentionMetadata
from kernels.sampler import keep_threshold, log_exponential

_LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in _LOOKS), f"{func} looks at values: it cannot be captured"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(step: Step) -> Step:
    """Runs the step, as capturing does, and returns what launches its operators again."""
    with _Recorder() as recorder:
        step()

    def replay() -> None:
        for func, args, kwargs, out in recorder.calls:
            again = func(*args, **kwargs)
            outs, agains = ((x,) if isinstance(x, Tensor) else tuple(x) for x in (out, again))
            for old, new in zip(outs, agains, strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)

    return replay


class DenseBackend:
    """Attention of decodes that looks at no value: over all that a block table can hold, masked."""

    name = "dense"
    is_capturable = True

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor | None = None,
        kv_scales: Tensor | None = None,
    ) -> Tensor:
        """See AttentionBackend.forward; prefills are not for it."""
        blocks, size, kv_heads, head_dim = k_cache.shape
        # Padding goes to the slot past the last, which is no sequence's.
        slots = torch.where(metadata.slot_mapping < 0, blocks * size - 1, metadata.slot_mapping)
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.view(-1, kv_heads, head_dim).index_copy_(0, slots, new)
        tables = metadata.decode_block_tables.long()
        keys, values = (
            cache.index_select(0, tables.flatten()).view(len(q), -1, kv_heads, head_dim).transpose(1, 2)
            for cache in (k_cache, v_cache)
        )
        inside = torch.arange(keys.shape[2]) < metadata.decode_context_lens.clamp(min=1).unsqueeze(1)
        attended = functional.scaled_dot_product_attention(
            q.view(len(q), kv_heads, -1, head_dim), keys, values, attn_mask=inside[:, None, None, :], scale=scale
        )
        return attended.reshape(q.shape)


class DecodeDenseBackend(DenseBackend):
    """Dense for steps that are all decodes, another backend for the others."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """See AttentionBackend.forward."""
        if args[5].num_prefill_tokens:
            out: Tensor = self._other.forward(*args, **kwargs)
            return out
        return super().forward(*args, **kwargs)


def sample_unseen(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """`kernels.sampler.sample` by operators that look at no value."""
    scores = logits / torch.where(temperature > 0, temperature, 1.0).unsqueeze(1)
    noise = log_exponential(seeds, positions, logits.shape[1])
    threshold = keep_threshold(logits, temperature, top_k, top_p, logits.shape[1])
    if threshold is not None:
        scores = torch.where(logits < threshold.unsqueeze(1), -torch.inf, scores)
    return torch.where((temperature > 0).unsqueeze(1), scores - noise, logits).argmax(-1)
