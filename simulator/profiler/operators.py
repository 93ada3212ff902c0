"""Every operator of a model as calls on static tensors, layer by layer with each layer's own weights and KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.blocks import CausalLM, GatedMLP
from engine.models.layers.attention import Attention
from engine.models.layers.parallel import TensorParallel
from kernels.activation import silu_and_mul
from kernels.attention.backends import AttentionMetadata, LayerKV
from kernels.cache.kv_integers import LARGEST, head_dim_of, quantize_blocks
from kernels.sampling.sampler import sample
from simulator.profiler.stopwatch import Call, MakeCalls

_PATTERN_BLOCKS = 1024


class LoneRank(TensorParallel):
    """The first of several ranks without the others: it computes its own part, and its collectives do nothing."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """This rank's columns repeated for each rank."""
        return x.repeat(1, self.size)


class Operators:
    """The operators of `model` on `kv_cache`, [layers, 2, blocks, block_size, kv_heads, head_dim].

    Args:
        max_tokens, max_seqs: the largest sizes that will be asked for.
        temperature: of the sampler, 0 being greedy.
        seed: of the activations.
    """

    def __init__(
        self, model: CausalLM, kv_cache: Tensor, max_tokens: int, max_seqs: int, temperature: float, seed: int
    ) -> None:
        self._model = model
        self._cache = kv_cache
        self._device = kv_cache.device
        self._dtype = model.norm.weight.dtype
        self._generator = torch.Generator().manual_seed(seed)
        self._block_size = kv_cache.shape[3]
        first = model.layers[0].attention
        config = model.config
        self._x, self._residual = (self._normal(max_tokens, config.hidden_size) for _ in range(2))
        self._ids = self._integers(config.vocab_size, max_tokens)
        self._positions = torch.arange(max_tokens, device=self._device) % config.max_position_embeddings
        self._qkv = self._normal(max_tokens, sum(first.heads) * first.head_dim)
        self._attended = self._normal(max_tokens, first.heads[0], first.head_dim)
        width = max(
            (layer.mlp.down_proj.columns for layer in model.layers if isinstance(layer.mlp, GatedMLP)), default=0
        )
        self._gate_up, self._activated = self._normal(max_tokens, 2 * width), self._normal(max_tokens, width)
        self._logits = self._normal(max_seqs, config.vocab_size)
        self._temperature = torch.full((max_seqs,), temperature, device=self._device)
        self._seeds = self._integers(1 << 31, max_seqs)
        fill_randomly(kv_cache, self._generator)

    def tokens(self, num_tokens: int, num_sequences: int, attention: MakeCalls | None = None) -> MakeCalls:
        """All operators of a step of `num_tokens` tokens, in their order.

        Args:
            num_sequences: sequences to sample; 0 leaves out the LM head and the sampler.
            attention: its calls, one per layer, run after the other operators of the layer; None leaves attention out.
        """
        slots = self._slots(num_tokens)

        def calls() -> list[Call]:
            ids, x = self._ids[:num_tokens], self._x[:num_tokens]
            made = [Call("embedding", lambda: self._model.embedding(ids))]
            attended = attention() if attention else ()
            for i in range(len(self._model.layers)):
                made += [*self._layer(i, num_tokens, slots), *attended[i : i + 1]]
            made.append(Call("final_norm", lambda: self._model.norm.add(x, self._residual[:num_tokens])))
            return made + (self._heads(num_sequences) if num_sequences else [])

        return calls

    def decode(self, contexts: Sequence[int], num_rows: int = 0, max_context: int = 0) -> MakeCalls:
        """Decode attention of sequences of these contexts, the blocks of each in one piece.

        A CUDA graph launches it for `num_rows`, of which some are padding, and for contexts of up to `max_context`.
        """
        num_rows, max_context = max(num_rows, len(contexts)), max(max_context, *contexts)
        counts = [-(-context // self._block_size) for context in contexts]
        held = block_tables(counts)
        tables = np.zeros((num_rows, -(-max_context // self._block_size)), np.int32)
        tables[: held.shape[0], : held.shape[1]] = held
        lengths = [*contexts, *[0] * (num_rows - len(contexts))]
        metadata = replace(
            self._nothing(),
            decode_context_lens=torch.tensor(lengths, dtype=torch.int32, device=self._device),
            decode_block_tables=torch.from_numpy(tables).to(self._device),
            max_decode_context=max_context,
        )
        return lambda: self._attention(metadata, num_rows)

    def prefill(self, chunk: int, start: int) -> MakeCalls:
        """Prefill attention of a chunk of a prompt after `start` tokens of it."""
        context = start + chunk
        num_blocks = -(-context // self._block_size)
        metadata = replace(
            self._nothing(),
            num_prefill_tokens=chunk,
            cu_seqlens_q=torch.tensor([0, chunk], dtype=torch.int32, device=self._device),
            prefill_context_lens=torch.tensor([context], dtype=torch.int32, device=self._device),
            prefill_block_tables=torch.arange(num_blocks, dtype=torch.int32, device=self._device).unsqueeze(0),
            max_seqlen_q=chunk,
            max_prefill_context=context,
        )
        return lambda: self._attention(metadata, chunk)

    def copies(self, num_blocks: int) -> MakeCalls:
        """Copies of `num_blocks` KV blocks, as they precede a step."""
        blocks = torch.randperm(self._cache.shape[2], generator=self._generator)[: 2 * num_blocks]
        sources, targets = blocks.to(self._device).view(2, -1)

        def copy() -> None:
            self._cache[:, :, targets] = self._cache[:, :, sources]

        return lambda: [Call("copy", copy)]

    # -- what they are made of ------------------------------------------------------------------------------------

    def _layer(self, index: int, num_tokens: int, slots: Tensor) -> list[Call]:
        layer, cache = self._model.layers[index], (self._cache[index, 0], self._cache[index, 1])
        attention: Attention = layer.attention
        x, residual = self._x[:num_tokens], self._residual[:num_tokens]
        attended = self._attended[:num_tokens].flatten(1)
        made = [
            Call("input_norm", lambda: layer.input_norm.add(x, residual if index else None)),
            Call("qkv_proj", lambda: attention.qkv_proj(x)),
        ]
        positions = self._positions[:num_tokens]
        qkv = self._qkv[:num_tokens].view(num_tokens, -1, attention.head_dim)
        made.append(Call("rotary_store", lambda: attention.rotary_store(qkv, positions, cache, slots)))
        made += [
            Call("o_proj", lambda: attention.o_proj(attended)),
            Call("post_norm", lambda: layer.post_norm.add(x, residual)),
        ]
        return made + self._mlp(layer.mlp, num_tokens)

    def _mlp(self, mlp: torch.nn.Module, num_tokens: int) -> list[Call]:
        x = self._x[:num_tokens]
        if isinstance(mlp, GatedMLP):
            gate_up, activated = self._gate_up[:num_tokens], self._activated[:num_tokens]
            return [
                Call("gate_up_proj", lambda: mlp.gate_up_proj(x)),
                Call("activation", lambda: silu_and_mul(gate_up)),
                Call("down_proj", lambda: mlp.down_proj(activated)),
            ]
        logits = mlp.router(x)
        return [
            Call("router", lambda: mlp.router(x)),
            Call("experts", lambda: mlp.experts(x, logits, mlp.top_k, mlp.renormalize)),
        ]

    def _heads(self, num_sequences: int) -> list[Call]:
        rows = slice(0, num_sequences)
        return [
            Call("lm_head", lambda: self._model.compute_logits(self._x[rows])),
            Call("sampler", lambda: sample(
                self._logits[rows], self._temperature[rows], None, None, self._seeds[rows], self._seeds[rows]
            )),
        ]  # fmt: skip

    def _attention(self, metadata: AttentionMetadata, num_tokens: int) -> list[Call]:
        """Attention of all layers, without the KV store."""
        step = replace(metadata)
        made = []
        for layer, cache in zip(self._model.layers, self._cache, strict=True):
            attention: Attention = layer.attention
            q = self._qkv[:num_tokens].unflatten(-1, (-1, attention.head_dim))[:, : attention.heads[0]]
            made.append(Call("attention", _forward(attention, q, cache, step)))
        return made

    def _nothing(self) -> AttentionMetadata:
        """A step of no tokens."""
        empty = torch.zeros(0, dtype=torch.int32, device=self._device)
        return AttentionMetadata(
            slot_mapping=empty.long(),
            num_prefill_tokens=0,
            cu_seqlens_q=torch.zeros(1, dtype=torch.int32, device=self._device),
            prefill_context_lens=empty,
            prefill_block_tables=empty.reshape(0, 0),
            max_seqlen_q=0,
            max_prefill_context=0,
            decode_context_lens=empty,
            decode_block_tables=empty.reshape(0, 0),
            max_decode_context=0,
        )

    def _slots(self, num_tokens: int) -> Tensor:
        """Slots of new keys: each decode writes to a block of its own, prompts write to consecutive slots."""
        stride = self._block_size if num_tokens <= self._logits.shape[0] else 1
        return torch.arange(num_tokens, device=self._device) * stride % (self._cache.shape[2] * self._block_size)

    def _integers(self, below: int, count: int) -> Tensor:
        return torch.randint(0, below, (count,), generator=self._generator).to(self._device)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self._device, self._dtype)


def block_tables(counts: Sequence[int]) -> NDArray[np.int32]:
    """Block tables of sequences that hold `counts` blocks, each in one piece: int32[sequences, most blocks]."""
    tables = np.zeros((len(counts), max(counts)), np.int32)
    first = 0
    for row, count in enumerate(counts):
        tables[row, :count] = np.arange(first, first + count)
        first += count
    return tables


def fill_randomly(kv_cache: Tensor, generator: torch.Generator) -> None:
    """Fill with normally distributed numbers, a pattern repeated: memory that was never written reads too fast."""
    num_blocks = kv_cache.shape[2]
    shape = (min(_PATTERN_BLOCKS, num_blocks), *kv_cache.shape[3:-1], head_dim_of(kv_cache))
    pattern = torch.randn(shape, generator=generator).to(kv_cache.device)
    dtype = kv_cache.dtype
    pattern = quantize_blocks(pattern, dtype) if dtype in LARGEST else pattern.to(dtype)
    for blocks in torch.arange(num_blocks).split(pattern.shape[0]):
        first, count = int(blocks[0]), len(blocks)
        kv_cache[:, :, first : first + count] = pattern[:count]


def _forward(attention: Attention, q: Tensor, cache: Tensor, metadata: AttentionMetadata) -> Callable[[], object]:
    kv = LayerKV(cache[0], cache[1], attention.kv_scales)
    return lambda: attention.backend.forward(q, kv, metadata, attention.scale)
