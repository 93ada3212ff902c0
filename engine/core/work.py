"""What a step costs, in sums: all that cost models look at, and no sequence among it."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy is imported when it is used, so that --help is fast
    import numpy as np
    from numpy.typing import NDArray


class ChunkWork:
    """`num_tokens` tokens of a prompt from position `start` on; the prompt's last chunk also yields a token."""

    __slots__ = ("start", "num_tokens", "is_last")

    def __init__(self, start: int, num_tokens: int, is_last: bool) -> None:
        self.start = start
        self.num_tokens = num_tokens
        self.is_last = is_last


class StepWork:
    """The work of one step, and of the decode steps that may follow it with the same sequences.

    Attributes:
        chunks: prompt chunks.
        num_decodes: sequences that decode.
        num_context_tokens: S1, the sum of their context lengths.
        num_squared_context_tokens: S2, the sum of the squares of these lengths; with S1 it tells how uneven they are.
        num_copied_blocks: KV blocks copied within the device before the step.
        tokens_per_decode: tokens that each decode computes: 1, and one more per speculative draft.
        num_shared_tokens: slots of KV blocks that several sequences hold, each block counted once.
        num_saved_tokens: how many slots more the decodes would hold if each had blocks of its own. Both are the same in
            the decode steps that follow.
        later_contexts, later_squared_contexts: S1 and S2 of this step and those that follow, int64[n], where a decode
            does not always bring one token; None where it does.
    """

    __slots__ = (
        "chunks", "num_decodes", "num_context_tokens", "num_squared_context_tokens", "num_copied_blocks",
        "tokens_per_decode", "num_shared_tokens", "num_saved_tokens", "later_contexts", "later_squared_contexts",
    )  # fmt: skip

    def __init__(
        self,
        chunks: abc.Sequence[ChunkWork],
        num_decodes: int,
        num_context_tokens: int,
        num_squared_context_tokens: int,
        num_copied_blocks: int = 0,
        tokens_per_decode: int = 1,
        later_contexts: NDArray[np.int64] | None = None,
        later_squared_contexts: NDArray[np.int64] | None = None,
    ) -> None:
        self.chunks = chunks
        self.num_decodes = num_decodes
        self.num_context_tokens = num_context_tokens
        self.num_squared_context_tokens = num_squared_context_tokens
        self.num_copied_blocks = num_copied_blocks
        self.tokens_per_decode = tokens_per_decode
        self.num_shared_tokens = 0
        self.num_saved_tokens = 0
        self.later_contexts = later_contexts
        self.later_squared_contexts = later_squared_contexts

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return self.num_decodes * self.tokens_per_decode + sum([chunk.num_tokens for chunk in self.chunks])

    def contexts(self, num_steps: int) -> NDArray[np.int64]:
        """S1 of each of `num_steps` decode steps, this one first; int64[num_steps]."""
        if self.later_contexts is not None:
            return self.later_contexts[:num_steps]
        import numpy as np

        first, growth = self.num_context_tokens, self.num_decodes
        if not growth:
            return np.full(num_steps, first, np.int64)
        return np.arange(first, first + num_steps * growth, growth, dtype=np.int64)

    def squared_contexts(self, num_steps: int) -> NDArray[np.int64]:
        """S2 of each of `num_steps` decode steps, this one first; int64[num_steps].

        Each context grows by one token per step, so k steps add k * (2 * S1 + k * num_decodes).
        """
        if self.later_squared_contexts is not None:
            return self.later_squared_contexts[:num_steps]
        import numpy as np

        steps: NDArray[np.int64] = np.arange(num_steps, dtype=np.int64)
        return self.num_squared_context_tokens + steps * (2 * self.num_context_tokens + steps * self.num_decodes)

    def after(self, num_steps: int) -> StepWork:
        """The work of the decode step that comes `num_steps` steps later."""
        if self.later_contexts is not None and self.later_squared_contexts is not None:
            later, squared = self.later_contexts[num_steps:], self.later_squared_contexts[num_steps:]
            work = StepWork(
                (), self.num_decodes, int(later[0]), int(squared[0]),
                tokens_per_decode=self.tokens_per_decode, later_contexts=later, later_squared_contexts=squared,
            )  # fmt: skip
        else:
            contexts = self.num_context_tokens + num_steps * self.num_decodes
            squared_growth = num_steps * (2 * self.num_context_tokens + num_steps * self.num_decodes)
            work = StepWork(
                (), self.num_decodes, contexts, self.num_squared_context_tokens + squared_growth,
                tokens_per_decode=self.tokens_per_decode,
            )  # fmt: skip
        work.num_shared_tokens, work.num_saved_tokens = self.num_shared_tokens, self.num_saved_tokens
        return work
