"""Sizes of a transformer in Hugging Face's `config.json`, for the real engine and for what is only simulated."""

from __future__ import annotations

from typing import NamedTuple

from engine.json_file import Fields, ModelError

# Largest sizes that are read, far above those of any model.
MOST_LAYERS = 1024
MOST_WIDTH = 1 << 20
MOST_TOKENS = 1 << 24  # of the vocabulary, and of a sequence
_MOST_HEADS = 1 << 14
_MOST_HEAD_DIM = 1 << 14
_MOST_EXPERTS = 1 << 14


class Sizes(NamedTuple):
    """Sizes that every decoder-only transformer has; counts of elements."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool


def read_sizes(fields: Fields, head_dim: int | None = None) -> Sizes:
    """The sizes in a `config.json`.

    Args:
        head_dim: of the family, where the file states none; None takes hidden_size / num_attention_heads.

    Raises:
        ModelError: a size is missing, out of range, or does not divide another one as it must.
    """
    hidden_size = fields.count("hidden_size", most=MOST_WIDTH)
    heads = fields.count("num_attention_heads", most=_MOST_HEADS)
    kv_heads = fields.count("num_key_value_heads", heads, most=heads)
    if heads % kv_heads:
        raise ModelError(f"{fields.where}: num_key_value_heads={kv_heads} does not divide {heads} heads")
    return Sizes(
        num_layers=fields.count("num_hidden_layers", most=MOST_LAYERS),
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, head_dim or hidden_size // heads),
        intermediate_size=fields.count("intermediate_size", most=MOST_WIDTH),
        vocab_size=fields.count("vocab_size", most=MOST_TOKENS),
        max_position_embeddings=fields.count("max_position_embeddings", most=MOST_TOKENS),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
    )


def read_num_experts(fields: Fields) -> tuple[int, int]:
    """Experts of a layer, and how many of them a token uses, under the names that families have for them.

    Raises:
        ModelError: one is missing or out of range.
    """
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    num_experts = fields.count(_first_there(fields, *names), most=_MOST_EXPERTS)
    used = _first_there(fields, "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts")
    return num_experts, fields.count(used, most=num_experts)


def _first_there(fields: Fields, *names: str) -> str:
    return next((name for name in names if fields.data.get(name) is not None), names[0])


def _head_dim(fields: Fields, default: int) -> int:
    """Size of an attention head; even, because the rotary embedding turns pairs of elements."""
    if (head_dim := fields.data.get("head_dim")) is None and default < 2:
        raise ModelError(f"{fields.where}: hidden_size leaves no two elements for each of num_attention_heads")
    head_dim = fields.count("head_dim", default, least=2, most=_MOST_HEAD_DIM)
    if head_dim % 2:
        raise ModelError(f"{fields.where}: head_dim={head_dim}: must be even")
    return head_dim
