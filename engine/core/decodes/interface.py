"""What the scheduler asks of the decoding sequences, however they grow."""

from __future__ import annotations

from collections import abc

from engine.core.flight import Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import BlockGrowth, Drafts
from engine.core.sequence import Sequence
from engine.core.work import ChunkWork, StepWork

NEVER = 1 << 62
"""The block size of decodes that have all their blocks from the start: none is ever due."""


class Decodes:
    """The decoding sequences of a lane: what every calendar has, and what it says of them.

    A timer (the end of a sequence, a block that it needs) never fires late; early is harmless. Until `next_event`,
    planning k times equals one run of k steps, bit for bit.

    Attributes:
        sequences: all of them, in the order they joined.
        fresh: those that joined since the last decode step.
        findable: those that may yet fill blocks which others can find.
        late: those that got their last token with the last step, which was not foreseen: where steps are planned ahead,
            they take part in the next one, until the commit.
        resting: those that must sit out the next step: the drafts under way may bring all tokens that there can be.
        tokens_per_decode: tokens that each computes in a step: 1, and one more per speculative draft.
        drafts: what became of the drafts of the steps that passed last; None without speculation.
    """

    # Declared in a class, and not a protocol, so that a compiled core finds them by place and not by name.
    sequences: dict[Sequence, None]
    fresh: dict[Sequence, None]
    findable: dict[Sequence, None]
    late: dict[Sequence, None]
    resting: dict[Sequence, None]
    tokens_per_decode: int
    drafts: Drafts | None

    def __init__(self, tokens_per_decode: int) -> None:
        self.sequences = {}
        self.fresh = {}
        self.findable = {}
        self.late = {}
        self.resting = {}
        self.tokens_per_decode = tokens_per_decode
        self.drafts = None

    def join(self, sequence: Sequence, *, is_padded: bool = False) -> None:
        """Let it decode from the next step on; with `is_padded` its last step was one of a decode with drafts, none of
        which is accepted."""
        raise NotImplementedError

    def remove(self, sequence: Sequence) -> None:
        raise NotImplementedError

    def next_event(self) -> int:
        """Decode steps until the first sequence may end; there must be one."""
        raise NotImplementedError

    def work(self, chunks: abc.Sequence[ChunkWork], num_copied_blocks: int) -> StepWork:
        """What a step with these prompt chunks and copies costs, in sums, without a loop over sequences."""
        raise NotImplementedError

    def num_blocks_due(self, ahead: int = 0) -> int:
        """Blocks that must be taken for the step that comes `ahead` steps from now."""
        raise NotImplementedError

    @property
    def num_step_tokens(self) -> int:
        """Tokens that all of them compute in the next step."""
        raise NotImplementedError

    def num_drafts_of(self, sequence: Sequence) -> int:
        """Drafts that the next step verifies of `sequence`."""
        raise NotImplementedError

    def num_found(self, sequence: Sequence) -> int:
        """Tokens of `sequence`, which may have ended with the last step, that were known when that was planned: it
        registered the blocks they fill."""
        raise NotImplementedError

    def blocks_due(self) -> abc.Mapping[Sequence, int]:
        """The sequences that need blocks for the next step, and how many each."""
        raise NotImplementedError

    def grow(self, ahead: int, blocks: BlockManager) -> BlockGrowth:
        """Take the blocks due `ahead` steps from now and append them to their tables."""
        raise NotImplementedError

    def run(self, num_steps: int, blocks: BlockManager) -> list[BlockGrowth]:
        """Take the blocks for `num_steps` steps from now, but those of the first."""
        raise NotImplementedError

    def affordable_steps(self, limit: int, num_free_blocks: int) -> int:
        """How many steps, at most `limit`, the free blocks allow, those of the first step being taken already."""
        raise NotImplementedError

    def filling(self, ahead: int) -> abc.Iterable[tuple[Sequence, int]]:
        """Sequences that may fill a block with their `ahead`-th token from now, and how many they have then."""
        raise NotImplementedError

    def steps_until(self, sequence: Sequence, num_tokens: int) -> int:
        """Decode steps, or fewer, until `sequence` has `num_tokens` tokens."""
        raise NotImplementedError

    def advance(self, num_steps: int, verified: Verified | None = None) -> list[Sequence]:
        """Let `num_steps` decode steps pass and take out the sequences that end with them; `verified` tells how many
        tokens each gained where the calendar does not know it."""
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Prove that timers and sums say what the sequences say; raises AssertionError."""
        raise NotImplementedError


MakeDecodes = abc.Callable[[int, int], Decodes]
"""Makes an empty calendar for blocks of so many tokens, and sequences of at most so many."""


def can_be_found(sequence: Sequence) -> bool:
    """Whether a sequence that begins to decode may fill blocks that others can find."""
    if sequence.token_ids is not None:
        return True
    return sequence.hashes is not None and sequence.hashes.count > sequence.num_registered_blocks
