"""Preemption: which running sequence gives way when blocks run out, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.kept_blocks import keep_prefix, name_content, num_shared_tokens
from engine.core.kv.lower_tiers import can_swap_out, swap_out
from engine.core.kv.pool import Pool
from engine.core.kv.tiers.tier import Transfer
from engine.core.sequence import Sequence

VictimRule = Callable[[Iterable[Sequence], Sequence | None, Pool], Sequence]
"""Chooses whom to preempt among running sequences, given last admitted first; the second argument was the last one, the
third is the pool that their blocks are of."""

PreemptionMode = Literal["recompute", "partial", "swap", "auto"]
Keeps = Literal["nothing", "prefix", "host_copy"]


def spare_last(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """Of the least urgent, the last admitted; `spared` only if there is no other.

    So a sequence that gave way and came back is not the next victim.
    """
    return min(running, key=lambda sequence: (-sequence.request.priority, sequence is spared))


def last_admitted(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """The last admitted, even if it was the last victim."""
    return next(iter(running))


def least_urgent(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """The least urgent, and among equals the one that arrived last, as vLLM's priority scheduling has it."""
    return max(running, key=lambda sequence: (sequence.request.priority, sequence.request.order))


def fewest_tokens_lost(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """The one with the fewest computed tokens, all of which it may have to compute again; among equals the last
    admitted."""
    return min(running, key=lambda sequence: sequence.num_computed_tokens)


def most_blocks_freed(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """The one that holds the most blocks which nobody shares, so that the fewest give way; among equals the last
    admitted."""
    return max(running, key=lambda s: len(s.block_table) - sum(map(pool.is_shared, s.block_table)))


def shortest(running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
    """The one with the fewest tokens left to generate, as far as its `max_tokens` says, so that long requests are not
    held up; among equals the last admitted."""
    return min(running, key=lambda sequence: sequence.end_length - sequence.num_tokens)


VICTIM_RULES: dict[str, VictimRule] = {
    "spare_last": spare_last,
    "last": last_admitted,
    "least_urgent": least_urgent,
    "fewest_tokens_lost": fewest_tokens_lost,
    "most_blocks_freed": most_blocks_freed,
    "shortest": shortest,
}


class Preemption(NamedTuple):
    """Who gives way, and what it keeps.

    Attributes:
        victim: chooses who gives way.
        mode: what the victim keeps: nothing ("recompute"); the blocks that nobody needs yet ("partial"); a copy in the
            host tier, or nothing where that has no room ("swap"); a copy where that is predicted to take less time
            than to compute the lost tokens again ("auto").
        recompute_token_us, transfer_block_us: what "auto" predicts with: the time that a lost token and the time that
            the transfer of a block, one way, takes.
    """

    victim: VictimRule = spare_last
    mode: PreemptionMode = "recompute"
    recompute_token_us: float = 0.0
    transfer_block_us: float = 0.0

    def kept_by(self, victim: Sequence, blocks: BlockManager) -> Keeps:
        """What a sequence keeps if it gives way now."""
        if self.mode == "partial":
            return "prefix"
        if self.mode == "recompute" or not can_swap_out(blocks, victim):
            return "nothing"
        return "host_copy" if self.mode == "swap" or self._swaps_faster(victim, blocks) else "nothing"

    def _swaps_faster(self, victim: Sequence, blocks: BlockManager) -> bool:
        """Whether to copy all computed blocks out and back takes less time than to compute what would be lost.

        Blocks of a cached prefix that others hold are not lost: the victim finds them again.
        """
        num_lost = victim.num_computed_tokens - num_shared_tokens(blocks, victim)
        num_blocks = blocks.blocks_for(victim.num_computed_tokens)
        return 2 * num_blocks * self.transfer_block_us < num_lost * self.recompute_token_us


def give_up_blocks(
    blocks: BlockManager, victim: Sequence, keeps: Keeps, num_known: int, release: Callable[[Sequence], None]
) -> list[Transfer]:
    """`release` the blocks of `victim`, of which `num_known` tokens are computed and known, except for what it keeps.

    It keeps nothing of its KV; or the prefix of full blocks, until others need them; or a copy in the host tier, made
    by the transfers returned.
    """
    victim.num_preemptions += 1
    victim.request.prefilled_elsewhere = False
    if keeps == "host_copy":
        victim.num_swaps += 1
        return swap_out(blocks, victim)
    victim.num_lost_tokens = max(victim.num_lost_tokens, victim.num_computed_tokens)
    name_content(blocks, victim, num_known)
    if victim.has_content:  # where steps are planned ahead, no plan may have registered the last block
        blocks.register(victim, num_known)
    if keeps == "prefix":
        keep_prefix(blocks, victim, num_known)
        victim.num_partial_preemptions += bool(victim.block_table)
    else:
        release(victim)
        victim.set_computed(0)
    return []
