"""The KV blocks of one rank, and how many of a model's fit in some bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.models.grouped_query import GroupedQuery
from simulator.models.model import Model

GIB = 1 << 30


@dataclass(frozen=True)
class KVPool:
    """The KV blocks of one rank, and how its memory is divided, in bytes; 0 if the number of blocks was configured.

    With a configured size in bytes, that is `usable_bytes`, and nothing is subtracted but `window_bytes`.
    `outside_bytes` is memory that torch does not allocate; `window_bytes` is set apart for layers with a sliding
    window, and for states of sequences, of which `block_bytes` then has no share; `has_drafter` says whether
    `block_bytes` and `weight_bytes` include those of a model that drafts tokens. `cached_size` is the memory of a
    cached block as a multiple of a held one's, `formula` what `block_bytes` is made of. `state_blocks` are those that
    each sequence holds for its state, where states are not set apart.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    usable_bytes: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    outside_bytes: int = 0
    window_bytes: int = 0
    has_drafter: bool = False
    cached_size: float = 1.0
    state_blocks: int = 0
    formula: str = GroupedQuery.kv_formula

    def describe(self) -> str:
        """One line for the log: the number of blocks and the formula it comes from."""
        line = f"KV pool: {self.num_blocks:,} blocks x {self.block_size} tokens = {self.num_tokens:,} tokens"
        layers = "layers without window" if self.cached_size > 1 else "layers"
        each = f"{self.block_bytes:,} bytes per block = {self.formula.format(layers=layers)}"
        each += ", of model and drafter" if self.has_drafter else ""
        each += f"; {self.state_blocks} blocks for the state of each sequence" if self.state_blocks else ""
        if not self.usable_bytes:
            return f"{line}, as configured; {each}"
        what = "sliding windows" if self.cached_size > 1 else "states"
        windows = f" - {what} {self.window_bytes / GIB:.2f} GiB" if self.window_bytes else ""
        if not self.weight_bytes:
            return f"{line} from {self.usable_bytes / GIB:.2f} GiB{windows}, as configured; {each}"
        account = (
            f"(usable {self.usable_bytes / GIB:.2f} GiB - weights {self.weight_bytes / GIB:.2f} GiB"
            f" - activations {self.activation_bytes / GIB:.2f} GiB"
            f" - outside of torch {self.outside_bytes / GIB:.2f} GiB{windows})"
        )
        return f"{line} from {account}; {each}"

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def blocks_in(
    free: int,
    model: Model,
    drafter: Model | None,
    block_size: int,
    ranks: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    *,
    shares_states: bool,
) -> KVPool:
    """The blocks in `free` bytes; with `shares_states` those of states, too."""
    drafter_bytes = block_size * drafter.kv_bytes_per_token(ranks) if drafter else 0
    states = 0 if shares_states else max_num_seqs * model.state_bytes(ranks)
    block_bytes = block_size * model.kv_bytes_per_token(ranks) + drafter_bytes
    own = model.state_bytes(ranks) if shares_states else 0
    pool = KVPool(
        (free - states) // block_bytes, block_size, block_bytes, window_bytes=states,
        has_drafter=drafter is not None, state_blocks=-(-own // block_bytes), formula=kv_formula(model),
    )  # fmt: skip
    growing = model.kv_bytes_per_token(ranks, growing_only=True)
    if not 0 < growing < model.kv_bytes_per_token(ranks):
        return pool
    apart = states + sum(
        count * block.kv_bytes(model, ranks) * (max_num_seqs * (block.window + block_size) + max_num_batched_tokens)
        for count, block in model.blocks
        if block.window
    )
    block_bytes = block_size * growing + drafter_bytes
    num_blocks = (free - apart) // block_bytes
    if num_blocks <= pool.num_blocks:
        return pool
    return replace(
        pool, num_blocks=num_blocks, block_bytes=block_bytes, window_bytes=apart, cached_size=_pages_of_prefix(model),
        state_blocks=-(-own // block_bytes),
    )  # fmt: skip


def kv_formula(model: Model) -> str:
    """What the bytes of a KV block are made of, for people."""
    return " + ".join(dict.fromkeys(block.kv_formula for _, block in model.blocks if block.kv_formula))


def _pages_of_prefix(model: Model) -> float:
    """Pages of a block of tokens in the prefix cache, as a multiple of those in layers without a window.

    vLLM's hybrid manager (since 0.11) makes groups of as many layers as the smaller kind has, of the larger one if that
    has less than a quarter more; a page holds a block of tokens in the layers of one group
    (`_get_kv_cache_groups_uniform_page_size` in v1/core/kv_cache_utils.py).
    """
    attentions = [(count, bool(block.window)) for count, block in model.blocks if block.is_attention]
    full, windowed = (sum(count for count, has_window in attentions if has_window is kind) for kind in (False, True))
    smaller, larger = sorted((full, windowed))
    size = larger if larger < 1.25 * smaller else smaller
    return 1 + -(-windowed // size) / -(-full // size)
