"""Bounds on what a step may hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on steps.

    Attributes:
        max_num_seqs: running sequences.
        max_num_batched_tokens: tokens of a step.
        watermark_blocks: free blocks that an admission leaves while others run.
        allocates_chunks: whether a prompt that is cut gets its blocks chunk by chunk.
        checks_full_prompt: whether a prompt is admitted only if all its blocks are free, or those of its first chunk.
        max_chunk_tokens: tokens of a prompt chunk; 0 for no bound of its own.
        cuts_prompts: whether prompts may be cut to the token budget at all.
        max_padding: for engines that pad the prompts of a step to the longest: tokens of padding that a step may have.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    watermark_blocks: int = 0
    allocates_chunks: bool = False
    checks_full_prompt: bool = True
    max_chunk_tokens: int = 0
    cuts_prompts: bool = True
    max_padding: int | None = None

    def pads_too_much(self, sizes: Iterable[int], more: int) -> bool:
        """Whether one more prompt, of `more` tokens, would bring a step of `sizes`, padded, over a limit."""
        if self.max_padding is None:
            return False
        sizes = [*sizes, more]
        padded = max(sizes) * len(sizes)
        return padded > self.max_num_batched_tokens or padded - sum(sizes) > self.max_padding
