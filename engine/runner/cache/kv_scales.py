"""Scales of a float8 KV cache: one for the keys and one for the values of each KV head of each layer.

The scales are measured once, on a prompt of random tokens, before the cache is allocated. Example: the largest absolute
key of a head is 3.0. Then its scale maps 6.0 (`_HEADROOM` times 3.0) to 448, the largest float8 number, and keys above
6.0 are clamped to it. The headroom costs no precision, because float8 rounds relative to the number. Scales in a
checkpoint are not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.models.blocks import CausalLM
from engine.models.layers.attention import Attention
from kernels.attention.backends import AttentionBackend, AttentionMetadata, LayerKV
from kernels.cache.kv_store import FP8_MAX

_HEADROOM = 2.0
_NUM_TOKENS = 512


class _MeasuringBackend:
    """Attends with another backend, and records the largest absolute key and value of each KV head."""

    name = "measuring"
    is_capturable = False

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.largest: Tensor | None = None

    def forward(self, q: Tensor, kv: LayerKV, *others: Any, **options: Any) -> Tensor:
        """See AttentionBackend.forward."""
        self.largest = torch.stack([x.float().abs().amax(dim=(0, 1, 3)) for x in (kv.keys, kv.values)])
        return self._backend.forward(q, kv, *others, **options)


@torch.no_grad()
def measure_scales(model: CausalLM, max_model_len: int, block_size: int, seed: int) -> None:
    """Set `kv_scales`, float32[2, kv_heads of this rank], of each attention layer; every rank must call this."""
    weight = model.norm.weight
    count = min(_NUM_TOKENS, max_model_len)
    generator = torch.Generator().manual_seed(seed % 2**32)
    ids = torch.randint(0, model.config.vocab_size, (count,), generator=generator).to(weight.device)
    num_blocks = -(-count // block_size)
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    shape = (2, num_blocks, block_size, layers[0].heads[1], model.config.head_dim)
    cache = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    measuring = [_MeasuringBackend(layer.backend) for layer in layers]
    for layer, backend in zip(layers, measuring, strict=True):
        layer.backend = backend
    try:
        # The layers run one after the other, so they can share one layer's cache.
        model(
            ids,
            torch.arange(count, device=weight.device),
            cache.expand(len(layers), *shape),
            whole_prompt(ids, block_size),
        )
    finally:
        for layer, backend in zip(layers, measuring, strict=True):
            layer.backend = backend._backend
    for layer, backend in zip(layers, measuring, strict=True):
        assert backend.largest is not None
        layer.kv_scales = (backend.largest * (_HEADROOM / FP8_MAX)).clamp_(min=torch.finfo(torch.float32).tiny)


def whole_prompt(ids: Tensor, block_size: int) -> AttentionMetadata:
    """Attention metadata of one prompt in the first blocks of a cache."""
    count, device = ids.shape[0], ids.device
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    return AttentionMetadata(
        slot_mapping=torch.arange(count, device=device),
        num_prefill_tokens=count,
        cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32, device=device),
        prefill_context_lens=torch.tensor([count], dtype=torch.int32, device=device),
        prefill_block_tables=torch.arange(-(-count // block_size), dtype=torch.int32, device=device).unsqueeze(0),
        max_seqlen_q=count,
        max_prefill_context=count,
        decode_context_lens=empty,
        decode_block_tables=empty.reshape(0, 0),
        max_decode_context=0,
    )
