"""The admitted sequences and what can happen to one of them.

    waiting ──start──▶ prefilling ──last chunk──▶ decoding ──last token──▶ released
       ▲                    │                         │                       ▲
       └─────────────────preempt──────────────────────┘          (ending) ────┘

With asynchronous scheduling a step is planned while the one before it runs, so a sequence that has got its last token
is still there when the next step is planned: it waits among the ending ones, and keeps its seat and its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.core.block_manager import BlockManager
from engine.core.decode_set import DecodeSet
from engine.core.plan import BlockGrowth, PrefillChunk
from engine.core.sequence import Sequence, SequenceStatus
from engine.core.waiting_queue import WaitingQueue

_NOBODY: Mapping[Sequence, int] = {}


class RunningSet:
    """Sequences from their admission until their blocks are released.

    Args:
        blocks: where their blocks come from and go to.
        waiting: where preempted ones go; its head may fit whenever something is released.
        async_scheduling: ended sequences stay until `release_ended`, and the block that a decode fills is registered
            one step later, because the step that fills it was not over when the next one was planned.
        counts_scattered: look at where the blocks of decodes lie.

    Attributes:
        sequences: all of them, in order of admission.
        prefilling: those whose known tokens are not all computed, in order of admission.
        decodes: those that decode.
        ending: those that have got their last token and wait for `release_ended`.
    """

    def __init__(
        self, blocks: BlockManager, waiting: WaitingQueue, *, async_scheduling: bool, counts_scattered: bool
    ) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.decodes = DecodeSet(blocks.block_size, counts_scattered=counts_scattered)
        self.ending: dict[Sequence, None] = {}
        self._blocks = blocks
        self._waiting = waiting
        self._async = async_scheduling
        self._last_decode_time: int | None = None

    def start(self, sequence: Sequence, num_cached_tokens: int, now: int) -> None:
        """Admit a sequence that has its first blocks, `num_cached_tokens` of them computed."""
        sequence.status = SequenceStatus.PREFILLING
        sequence.set_computed(num_cached_tokens)
        if sequence.first_scheduled_time is None:
            sequence.first_scheduled_time = now
            sequence.num_cached_tokens = num_cached_tokens
        self.sequences[sequence] = None
        self.prefilling[sequence] = None

    def grow(self, ahead: int, due: dict[Sequence, list[int]]) -> BlockGrowth:
        """Give each of `due` the block that it needs `ahead` decode steps from now."""
        taken = self._blocks.take(len(due))
        for table, block in zip(due.values(), taken, strict=True):
            table.append(block)
        return BlockGrowth(ahead, list(due), taken)

    def register_filled(self, ahead: int, stopped: Mapping[Sequence, int] = _NOBODY) -> None:
        """Register the blocks of decodes that the planning of the step `ahead` of the next one knows to be full."""
        findable = self.decodes.findable
        known = ahead - self._async
        for sequence in self.decodes.due(known + 1):
            if sequence in findable and sequence not in stopped:
                self._blocks.register(sequence, sequence.num_tokens + known)

    def suppliers(self, waiting: Sequence, index: int) -> list[Sequence]:
        """Who may fill the block `index` of the known tokens of `waiting`, so that it needs one block less.

        With asynchronous scheduling that wins nothing: a block is registered when its sequence takes the next one.
        """
        return [] if self._async else self.decodes.suppliers(waiting, index)

    def steps_until_supply(self) -> int:
        """Decode steps until one of the suppliers of the waiting queue's head fills the awaited block."""
        end = (self._waiting.awaited_block + 1) * self._blocks.block_size
        return min(end - supplier.num_tokens for supplier in self._waiting.suppliers)

    def commit_chunk(
        self, chunk: PrefillChunk, now: int, stopped: Mapping[Sequence, int], resumed_gaps: list[int]
    ) -> bool:
        """Account for an executed chunk; True if its sequence ended with it."""
        sequence = chunk.sequence
        sequence.set_computed(chunk.start + chunk.num_tokens)
        if not chunk.is_last:
            return False
        del self.prefilling[sequence]
        sequence.add_tokens(1)
        if sequence.first_token_time is None:
            sequence.first_token_time = now
        elif sequence.last_token_time is not None:
            resumed_gaps.append(now - sequence.last_token_time)
        sequence.last_token_time = now
        if sequence.num_tokens < sequence.end_length and sequence not in stopped:
            self.decodes.join(sequence)
            return False
        self._end(sequence, stopped)
        return True

    def commit_decodes(self, num_steps: int, now: int, stopped: Mapping[Sequence, int]) -> list[Sequence]:
        """Account for `num_steps` decode steps up to `now`; returns the sequences that ended with them."""
        decodes = self.decodes
        if decodes.findable:
            for ahead in range(1, num_steps):
                self.register_filled(ahead, stopped)
        finished = decodes.advance(num_steps)
        for sequence in stopped:
            if sequence in decodes.sequences:
                decodes.remove(sequence)
                finished.append(sequence)
        for sequence in finished:
            self._end(sequence, stopped)
        self._last_decode_time = now
        return finished

    def release_ended(self) -> None:
        """The step that was planned beside the last tokens of the ending sequences is planned: let them go."""
        for sequence in self.ending:
            self._blocks.register(sequence, sequence.num_tokens - 1)
            self._release(sequence)
        self.ending.clear()

    def preempt(self, sequence: Sequence) -> None:
        """Throw away the KV of `sequence`; it goes back to the queue with what it had generated."""
        num_known = sequence.num_computed_tokens
        if sequence in self.decodes.sequences and sequence not in self.decodes.fresh:
            sequence.last_token_time = self._last_decode_time
            num_known -= self._async
        self._leave(sequence, SequenceStatus.WAITING)
        sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.num_computed_tokens)
        sequence.num_preemptions += 1
        self._blocks.name_content(sequence, num_known)
        self._release(sequence)
        sequence.set_computed(0)
        self._waiting.push(sequence)

    def abort(self, sequence: Sequence) -> None:
        self._leave(sequence, SequenceStatus.ABORTED)
        self._release(sequence)

    def release_early(self, sequence: Sequence) -> None:
        """Let an ending sequence go at once, because its blocks are needed."""
        del self.ending[sequence]
        self._release(sequence)

    def _end(self, sequence: Sequence, stopped: Mapping[Sequence, int]) -> None:
        """`sequence` has got its last token."""
        self._leave(sequence, SequenceStatus.FINISHED)
        if sequence in stopped:
            sequence.add_tokens(-stopped[sequence])
            self._blocks.register(sequence, sequence.num_tokens - 1)
        if self._async:
            self.ending[sequence] = None
        else:
            self._release(sequence)

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        if sequence in self.decodes.sequences:
            self.decodes.remove(sequence)
        else:
            self.prefilling.pop(sequence, None)
        sequence.leave(status)

    def _release(self, sequence: Sequence) -> None:
        del self.sequences[sequence]
        self._blocks.release(sequence)
        self._waiting.head_blocked = False

    def check_integrity(self) -> None:
        """Prove that every sequence is in the one state that its tokens and blocks say; raises AssertionError."""
        self._blocks.check_integrity(self.sequences)
        self.decodes.check_integrity()
        states = [self.prefilling.keys(), self.decodes.sequences.keys(), self.ending.keys()]
        assert sum(map(len, states)) == len(self.sequences)
        assert set().union(*states) == self.sequences.keys()
        assert self._async or not self.ending
        for sequence in self.sequences:
            assert (sequence.status is SequenceStatus.FINISHED) == (sequence in self.ending)
