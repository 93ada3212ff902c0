"""The admitted sequences of one lane and what can happen to one of them.

    waiting ──start──▶ prefilling ──last chunk──▶ decoding ──last token──▶ ending ──commit──▶ released
       ▲  └──park──▶ parked ──ready──▶ ┘ or ───────▶ ┘ │
       └──────────────────── preempt ──────────────────┘

`engine.core.running.progress` tells what a plan brings them.
"""

from __future__ import annotations

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.decodes.interface import Decodes
from engine.core.flight import Flight
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.lower_tiers import land
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.tiers.tier import Transfer
from engine.core.running.preemption import Keeps, give_up_blocks
from engine.core.sequence import FINISHED, PREFILLING, Sequence, SequenceStatus


class RunningSet:
    """Sequences from their admission until their blocks are released.

    Args:
        blocks: where their blocks come from and go to.
        waiting: where preempted ones go; its head may fit whenever something is released.
        decodes: an empty calendar for those that decode.
        lag: steps that pass until the tokens of a planned step are known when the next one is planned: 0, or 1 when
            steps are planned ahead. The block that a decode fills is registered that much later.

    Attributes:
        sequences: all of them, in order of admission.
        prefilling: those whose known tokens are not all computed, in order of admission.
        decodes: those that decode.
        paused: those that decode but sit out the planned step, with how many of their tokens were known when the step
            under way was planned.
        parked: those that wait for something that is not a step.
        held: those without a seat whose blocks are still written or read: they were aborted while parked, or their KV
            is copied to another server.
        forked: those that may have to copy a block that they share before they write into it.
        ending: those that got their last token in a plan that is not committed.
        padding: padding rows of finished sequences in a static batch, among the decodes or the paused.
        num_reserved: seats of sequences that will be forked from admitted ones.
        flights: plans that are not committed, at most two, in order.
        returning: parked ones that became ready since the plan under way was made.
        last_decode_time: when the last decode step ended.
        num_decode_steps: that have passed.
    """

    def __init__(self, blocks: BlockManager, waiting: WaitingQueue, decodes: Decodes, *, lag: int) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.decodes = decodes
        self.paused: dict[Sequence, int] = {}
        self.parked: dict[Sequence, None] = {}
        self.held: dict[Sequence, None] = {}
        self.forked: dict[Sequence, None] = {}
        self.ending: dict[Sequence, None] = {}
        self.padding: dict[Sequence, None] = {}
        self.num_reserved = 0
        self._num_admitted = 0
        self.flights: list[Flight] = []
        self._blocks = blocks
        self._waiting = waiting
        self.lag = lag
        self.returning: list[Sequence] = []
        self.last_decode_time: int | None = None
        self.num_decode_steps = 0

    @property
    def num_seats(self) -> int:
        """Seats that are taken."""
        return len(self.sequences) + self.num_reserved

    # -- while a step is planned ----------------------------------------------------------------------------------

    def start(self, sequence: Sequence, match: PrefixMatch, now: int) -> None:
        """Admit a sequence that has its first blocks, those of `match` computed."""
        self._admit(sequence, PREFILLING, now)
        if match is not NO_MATCH:
            match.count_for(sequence, self._blocks.block_size)
        self.prefilling[sequence] = None

    def park(self, sequence: Sequence, now: int) -> None:
        """Admit a sequence that has its blocks and cannot run before `ready`."""
        self._admit(sequence, SequenceStatus.PARKED, now)
        self.parked[sequence] = None

    def ready(self, sequence: Sequence) -> None:
        """What a parked sequence waited for is there: it takes part in the next plan.

        One that has ended gives up its blocks, which nobody else could have as long as they were written or read.
        """
        if sequence in self.held:
            self._end_holding(sequence)
        if sequence not in self.parked:
            return
        if self.flights and not self.flights[-1].is_advanced:
            self.returning.append(sequence)  # it gets no token of the plan that is under way
            return
        del self.parked[sequence]
        self._waiting.unblock_head()  # it may fill a block that the first in the queue can share
        land(self._blocks, sequence)
        sequence.status = SequenceStatus.PREFILLING
        if sequence.has_content:
            self._blocks.register_loaded(sequence, sequence.num_computed_tokens)
        if sequence.is_prefilled:
            self.decodes.join(sequence)
        else:
            self.prefilling[sequence] = None

    def is_under_way(self, sequence: Sequence) -> bool:
        """With a connector: whether the plan that is not committed computes something of a sequence."""
        return bool(self.flights) and sequence in self.flights[-1].members

    def pause(self, sequence: Sequence) -> None:
        """Let a decoding sequence sit out the step that is being planned."""
        self._note_last_token(sequence)
        self.paused[sequence] = self.decodes.num_found(sequence)
        self.decodes.remove(sequence)
        sequence.leave(SequenceStatus.DECODING)

    def resume(self) -> None:
        """Let the paused sequences decode again."""
        self._waiting.unblock_head()  # they may fill a block that the first in the queue can share
        for sequence in self.paused:
            self.decodes.join(sequence)
        self.paused.clear()

    def preempt(self, sequence: Sequence, keeps: Keeps) -> list[Transfer]:
        """Take the seat of `sequence`, which goes back to the queue with what it had generated, and its blocks except
        for what it keeps."""
        num_known = sequence.num_computed_tokens
        if sequence in self.paused:
            num_known = self.paused[sequence] - self.lag
        elif self._note_last_token(sequence):
            num_known = self.decodes.num_found(sequence) - self.lag
        if self.flights and (sequence in self.flights[-1].victims or sequence in self.flights[-1].started):
            self._waiting.coming.add(sequence)
        self.leave(sequence, SequenceStatus.WAITING)
        if self._blocks.connector is not None:
            self._blocks.connector.give_way(sequence)
        transfers = give_up_blocks(self._blocks, sequence, keeps, num_known, self._release_blocks)
        del self.sequences[sequence]
        self._waiting.on_release(sequence)
        self._waiting.push(sequence)
        return transfers

    def release_early(self, sequence: Sequence) -> None:
        """Let an ending sequence go at once, because its blocks are needed."""
        del self.ending[sequence]
        if self._blocks.connector is None:
            self.release(sequence)
            return
        del self.sequences[sequence]
        self._blocks.connector.give_way(sequence)
        self._waiting.on_release(sequence)
        self._release_blocks(sequence)

    def abort(self, sequence: Sequence, num_known: int) -> None:
        """Take a sequence out, of which `num_known` tokens are known; what it has blocks for that are still coming, it
        holds until they are there."""
        was_parked = sequence in self.parked
        self.leave(sequence, SequenceStatus.ABORTED)
        if was_parked and sequence not in self.returning:
            del self.sequences[sequence]
            self.held[sequence] = None
            self._waiting.on_release(sequence)
            return
        if was_parked:
            land(self._blocks, sequence)
        self.release(sequence, num_known)

    def _holds_busy(self, sequence: Sequence) -> bool:
        """Whether its blocks are not free before the step under way has run, which computes something of it."""
        connector = self._blocks.connector
        return connector is not None and connector.rules.busy_blocks != "free" and self.is_under_way(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence that goes on without them: now, or when the step under way has run."""
        if not self._holds_busy(sequence):
            self._blocks.release(sequence)
            return
        holder = sequence.hand_over_blocks()
        self.held[holder] = None
        self.flights[-1].freed.append(holder)

    def _end_holding(self, sequence: Sequence) -> None:
        del self.held[sequence]
        land(self._blocks, sequence)
        self._blocks.release(sequence)
        self._waiting.unblock_head()

    # -- between states -------------------------------------------------------------------------------------------

    def _note_last_token(self, sequence: Sequence) -> bool:
        """Note when a sequence that leaves the decodes got its last token; False if not from a decode step."""
        if sequence not in self.decodes.sequences or sequence in self.decodes.fresh:
            return False
        sequence.last_token_time = self.last_decode_time
        if self.flights:
            self.flights[-1].victims = [*self.flights[-1].victims, sequence]
        return True

    def _admit(self, sequence: Sequence, status: SequenceStatus, now: int) -> None:
        sequence.status = status
        self.seat(sequence)
        self.num_reserved += sequence.num_forks
        if sequence.request.first_scheduled_time is None:
            sequence.request.first_scheduled_time = now

    def seat(self, sequence: Sequence) -> None:
        """Give `sequence` a seat, behind all that have one."""
        sequence.admission = self._num_admitted
        self._num_admitted += 1
        self.sequences[sequence] = None
        self._waiting.on_seat(sequence)

    def leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Take `sequence` out of the state that it is in; it keeps its seat and its blocks."""
        if sequence in self.decodes.sequences:
            self.decodes.remove(sequence)
        else:
            for state in (self.prefilling, self.parked, self.paused, self.ending):
                state.pop(sequence, None)
        self.num_reserved -= sequence.num_forks
        self.forked.pop(sequence, None)
        sequence.leave(status)

    def release(self, sequence: Sequence, num_known: int | None = None) -> None:
        """Take the seat of a sequence that is in no state any more, and its blocks if no other server needs them.

        `num_known` of its tokens are known; None for all.
        """
        del self.sequences[sequence]
        connector = self._blocks.connector
        is_held = connector is not None and connector.end(sequence, num_known)
        if self._holds_busy(sequence):
            self.flights[-1].freed.append(sequence)
            is_held = True
        if is_held or sequence.request.decodes_elsewhere and sequence.status is FINISHED:
            self.held[sequence] = None
        else:
            self._blocks.drop(sequence)
        self._waiting.on_release(sequence)
