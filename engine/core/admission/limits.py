"""Bounds on what a step may hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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

    def check(self, tokens_per_decode: int, *, pads: bool) -> None:
        """Raise ValueError if a step has no room for a decode of `tokens_per_decode` tokens of every sequence, or such
        decodes cannot be padded."""
        if self.max_num_seqs * tokens_per_decode > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs={self.max_num_seqs} must be at least 1, and its decodes fit into "
                f"max_num_batched_tokens={self.max_num_batched_tokens}"
            )
        if pads and tokens_per_decode > 1:
            raise ValueError(
                "options.padded=true: rows of padding draft no tokens, so speculation has no batch of fixed shape; set "
                "options.padded=false"
            )

    def of_lane(self, lane: int, num_lanes: int, *, pads: bool) -> Limits:
        """The bounds of one of `num_lanes` lanes; with `pads` the prompts of its steps are padded, without a limit of
        their own."""
        max_num_seqs = (self.max_num_seqs + lane) // num_lanes
        max_padding = self.max_num_batched_tokens if pads and self.max_padding is None else self.max_padding
        return replace(self, max_num_seqs=max_num_seqs, max_padding=max_padding)

    def without_chunk_bound(self) -> Limits:
        return replace(self, max_chunk_tokens=0)

    def chunk_tokens(self, left: int, budget: int) -> int:
        """Tokens of the next chunk of a prompt with `left` to compute, within the budget and the limit of a chunk."""
        most = self.max_chunk_tokens
        if most and most < left:
            left = most
        return left if left < budget else budget

    def pads_too_much(self, sizes: Iterable[int], more: int) -> bool:
        """Whether one more prompt, of `more` tokens, would bring a step of `sizes`, padded, over a limit."""
        if self.max_padding is None:
            return False
        sizes = [*sizes, more]
        padded = max(sizes) * len(sizes)
        return padded > self.max_num_batched_tokens or padded - sum(sizes) > self.max_padding
