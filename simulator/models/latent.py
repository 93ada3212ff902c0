"""Attention to one compressed vector per token, which all heads share (DeepSeek-V2, https://arxiv.org/abs/2405.04434).

The vector, `kv_rank + rope_dim` elements, is on every rank. Decodes multiply queries by it as it is (absorbed): the
matrices that would expand it are multiplied into query and output instead. Prompts expand it to keys and values.

Sparse attention (DeepSeek-V3.2) attends to the `index_topk` tokens that an indexer finds best, with heads of its own
over keys of `index_dim` elements; vLLM caches these in 8 bits with a float32 scale, and with an FP8 cache 656 bytes of
the vector: 512 elements in FP8, 4 scales of 4 bytes, and the 64 rotated elements in 16 bits. It is never expanded.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.models.block import Block, Scan, Sizes, SmallKernels, Weights

_INDEX_SCALE_BYTES = 4
_SPARSE_SCALE_BLOCK = 128  # elements of the vector that share a scale


@dataclass(frozen=True)
class Latent(Block):
    """Attributes:
    query_rank: to which queries are compressed; 0 where they are not.
    kv_rank, rope_dim: elements of the vector that are not and that are rotated.
    nope_dim, value_dim: elements of a head of expanded keys beside the rotated ones, and of values.
    index_topk: tokens that are attended to; 0 for all.
    index_heads, index_dim: of the indexer; 0 where the layer takes what another one found.
    has_gate: whether the output is gated, by as many elements as values have.
    num_extras: parameters beside matrices and the norms of hidden state, compressed query, vector and index keys.
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    value_dim: int
    rope_dim: int = 0
    query_rank: int = 0
    index_topk: int = 0
    index_heads: int = 0
    index_dim: int = 0
    has_gate: bool = False
    num_extras: int = 0

    @property
    def kv_formula(self) -> str:  # type: ignore[override]
        """On every rank in full."""
        index = " + {layers}·block_size·(index_dim + 4)" if self.index_heads else ""
        return "{layers}·block_size·(kv_rank + rope_dim)·bytes" + index

    @property
    def rotary_dim(self) -> int:  # type: ignore[override]
        return self.rope_dim

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        heads, hidden, down = self.num_heads // ranks, model.hidden_size, self.kv_rank + self.rope_dim
        query = heads * (self.nope_dim + self.rope_dim)
        own = (
            Weights("q_b_proj", "attention", query, self.query_rank or hidden),
            Weights("kv_b_proj", "attention", heads * (self.nope_dim + self.value_dim), self.kv_rank),
            Weights("o_proj", "attention_output", hidden, heads * self.value_dim),
            Weights("qkv_a_proj", "attention", self.query_rank + down, hidden),
            *([Weights("gate_proj", "attention", heads * self.value_dim, hidden)] if self.has_gate else ()),
        )
        if not self.index_heads:
            return own
        return (
            *own,
            Weights("index_q_proj", "indexer", self.index_heads * self.index_dim, self.query_rank or hidden),
            Weights("index_k_proj", "indexer", self.index_dim, hidden),
            Weights("index_weights_proj", "router", self.index_heads, hidden),
        )

    def num_vectors(self, model: Sizes) -> int:
        """The norm of index keys has a bias."""
        norms = self.query_rank + self.kv_rank + (2 * self.index_dim if self.index_heads else 0)
        return model.hidden_size + norms + self.num_extras

    def vector_bytes(self, model: Sizes) -> int:
        if model.kv_dtype == "auto":
            return (self.kv_rank + self.rope_dim) * model.dtype_bytes
        if not self.index_topk:
            return self.kv_rank + self.rope_dim
        return self.kv_rank + 4 * self.kv_rank // _SPARSE_SCALE_BLOCK + self.rope_dim * model.dtype_bytes

    def scans(self, model: Sizes, ranks: int) -> tuple[Scan, ...]:
        heads = self.num_heads // ranks
        absorbed = 2 * heads * (2 * self.kv_rank + self.rope_dim)
        expanded = None if self.index_topk else 2 * heads * (self.nope_dim + self.rope_dim + self.value_dim)
        attended = Scan(self.vector_bytes(model), absorbed, self.index_topk, expanded)
        if not self.index_heads:
            return (attended,)
        return attended, Scan(self.index_dim + _INDEX_SCALE_BYTES, 2 * self.index_heads * self.index_dim)

    def heads(self) -> tuple[int, ...]:
        return (self.num_heads,)

    def width(self, ranks: int) -> int:
        """Queries, expanded keys and values, and output."""
        return self.num_heads // ranks * (2 * (self.nope_dim + self.rope_dim) + 2 * self.value_dim)

    def num_elements(self, model: Sizes, ranks: int) -> float:
        """Norms of the compressed query and the vector, rotary embedding, and the store."""
        normed = 2 * (self.query_rank + self.kv_rank)
        return normed + 2 * (self.num_heads // ranks + 1) * self.rope_dim + 2 * (self.kv_rank + self.rope_dim)

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """The norm; tables of latent attention time the others with its products."""
        return SmallKernels(1, 4 * model.hidden_size * model.dtype_bytes)
