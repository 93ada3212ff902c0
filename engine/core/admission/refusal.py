"""Which requests can never run."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
from engine.core.sequence import Request, RequestRefusedError


class Refusal:
    """Refuses what a scheduler can never run.

    Args:
        longest: prompt and output tokens that no sequence can exceed.
        longest_prompt: tokens that no prompt can exceed.
        most_sequences: sequences of a request that may run.
        blocks: the KV block pool.
    """

    def __init__(self, longest: int, longest_prompt: int, most_sequences: int, blocks: BlockManager) -> None:
        self._longest = longest
        self._longest_prompt = longest_prompt
        self._most_sequences = most_sequences
        self._forks = blocks.forks

    def limit(self, request: Request) -> int:
        """Prompt and output tokens that a sequence of `request` cannot exceed.

        Raises:
            RequestRefusedError: `request` can never run.
        """
        prompt, limit = request.num_prompt_tokens, self._longest
        if prompt < 1:
            raise RequestRefusedError("the prompt is empty")
        if request.max_tokens < 1:
            raise RequestRefusedError(f"max_tokens={request.max_tokens} must be at least 1")
        if prompt >= limit:
            raise RequestRefusedError(f"a prompt of {prompt} tokens and its output exceed the limit of {limit} tokens")
        if prompt > self._longest_prompt:
            raise RequestRefusedError(
                f"a prompt of {prompt} tokens, which is not cut, exceeds the {self._longest_prompt} of a step"
            )
        count, most = request.num_sequences, self._most_sequences
        if count > 1 and not self._forks:
            raise RequestRefusedError(
                "sequences of one prompt share blocks that they write to; neither reservations, radix trees nor stored "
                "blocks do"
            )
        if not 1 <= count <= most:
            raise RequestRefusedError(f"{count} sequences: must be from 1 to {most}, which may run")
        return limit
