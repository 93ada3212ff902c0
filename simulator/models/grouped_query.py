"""Attention of groups of query heads to a key and a value head each, over all tokens or the last few."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.models.block import Block, Scan, Sizes, SmallKernels, Weights

_SCALE_BYTES = 2  # of int8 and int4 in the KV cache


@dataclass(frozen=True)
class GroupedQuery(Block):
    """Attributes:
    window: tokens that are attended to; 0 for all.
    qk_norm: whether heads of query and key are normed.
    norm_spans_heads: whether that norm is over all heads, of all ranks, which then exchange sums of squares.
    num_extras: parameters beside matrices, the norm of the hidden state, and norms of a query and a key head.
    value_dim: width of a head of values; 0 for `head_dim`.
    has_gate: whether the output is gated, by as many elements as queries have.
    shares_projection: whether values are the keys before their norm and rotary embedding.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    qk_norm: bool = False
    num_extras: int = 0
    value_dim: int = 0
    has_gate: bool = False
    shares_projection: bool = False
    norm_spans_heads: bool = False

    def kv_heads_per_rank(self, ranks: int) -> int:
        """KV heads are split over the ranks, and replicated where there are more ranks than heads."""
        return max(1, self.num_kv_heads // ranks)

    kv_formula = "2·{layers}·block_size·kv_heads/TP·(head_dim·bytes + scale)"

    @property
    def rotary_dim(self) -> int:  # type: ignore[override]
        return self.head_dim

    @property
    def kv_dim(self) -> int:
        """Elements of a key and a value."""
        return self.head_dim + (self.value_dim or self.head_dim)

    def head_bytes(self, model: Sizes) -> int:
        """Bytes of the key and the value of one token in one KV head.

        A row of int8 or int4 ends in the float16 scale of its elements. Two elements of int4 take a byte. The scales of
        fp8 are one per head for all tokens, and are not counted.
        """
        bits = {"auto": 8 * model.dtype_bytes, "fp8": 8, "int8": 8, "int4": 4}[model.kv_dtype]
        scale = _SCALE_BYTES if model.kv_dtype in ("int8", "int4") else 0
        return sum(-(-dim * bits // 8) + scale for dim in (self.head_dim, self.kv_dim - self.head_dim))

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        heads, kv_heads = self.num_heads // ranks, self.kv_heads_per_rank(ranks)
        rows = (2 if self.has_gate else 1) * heads * self.head_dim
        rows += kv_heads * (self.head_dim if self.shares_projection else self.kv_dim)
        return (
            Weights("qkv_proj", "attention", rows, model.hidden_size),
            Weights("o_proj", "attention_output", model.hidden_size, heads * (self.kv_dim - self.head_dim)),
        )

    def num_vectors(self, model: Sizes) -> int:
        return model.hidden_size + (2 * self.head_dim if self.qk_norm else 0) + self.num_extras

    def scans(self, model: Sizes, ranks: int) -> tuple[Scan, ...]:
        kv_bytes = self.kv_heads_per_rank(ranks) * self.head_bytes(model)
        return (Scan(kv_bytes, 2 * (self.num_heads // ranks) * self.kv_dim, self.window),)

    def heads(self) -> tuple[int, ...]:
        return (self.num_heads,)

    def width(self, ranks: int) -> int:
        """Query, key, value and output."""
        return (2 * self.num_heads // ranks + 2 * self.kv_heads_per_rank(ranks)) * self.head_dim

    def num_elements(self, model: Sizes, ranks: int) -> float:
        """Rotary embedding of query and key, and the KV store."""
        kv_heads = self.kv_heads_per_rank(ranks)
        store = kv_heads * (self.kv_dim + self.head_bytes(model) / model.dtype_bytes)
        return 2 * (self.num_heads // ranks + kv_heads) * self.head_dim + store

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """The norm, rotary embedding and KV store, and a norm of query and of key."""
        kv_heads = self.kv_heads_per_rank(ranks)
        turned = 2 * (self.num_heads // ranks + kv_heads) * self.head_dim
        elements = 4 * model.hidden_size + (2 * turned if self.qk_norm else turned)
        stored = kv_heads * (self.kv_dim * model.dtype_bytes + self.head_bytes(model))
        return SmallKernels(5 if self.qk_norm else 3, elements * model.dtype_bytes + stored)

    def kernels_with_attention(self, model: Sizes, ranks: int) -> SmallKernels:
        """Rotary embedding and KV store; norms of query and key, one kernel with the embedding, leave one behind."""
        kv_heads = self.kv_heads_per_rank(ranks)
        turned = 2 * (self.num_heads // ranks + kv_heads) * self.head_dim
        stored = kv_heads * (self.kv_dim * model.dtype_bytes + self.head_bytes(model))
        return SmallKernels(3 if self.qk_norm else 2, turned * model.dtype_bytes + stored)
