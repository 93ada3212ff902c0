"""Who gives way when blocks run out: padding, then waiting sequences that keep some, then running ones."""

from __future__ import annotations

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.kept_blocks import give_up
from engine.core.plan import StepDraft
from engine.core.running import padding
from engine.core.running.preemption import Preemption
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


class GivingWay:
    """Frees blocks for the sequences of one lane.

    Blocks run out in this order: free ones, those of padding, those that waiting sequences kept, those of the
    sequence that is preempted next, which may keep some in turn. So preemption frees no more than is needed.
    """

    def __init__(
        self, blocks: BlockManager, waiting: WaitingQueue, running: RunningSet, preemption: Preemption
    ) -> None:
        self.waiting = waiting
        self.running = running
        self.blocks = blocks
        self._preemption = preemption
        self._last_victim: Sequence | None = None

    @property
    def num_free_blocks(self) -> int:
        return self.blocks.num_free_blocks

    def choose_victim(self) -> Sequence:
        """Whom the preemption rule would take among all running sequences of the lane."""
        return self._preemption.victim(reversed(self.candidates()), self._last_victim, self.blocks.pool)

    def spares(self, victim: Sequence) -> bool:
        """Whether nobody gets the blocks of `victim` now, as loads could overwrite what the step under way writes."""
        connector = self.blocks.connector
        return connector is not None and connector.rules.busy_blocks == "spared" and self.running.is_under_way(victim)

    def preempt(self, draft: StepDraft, victim: Sequence) -> None:
        """Take the blocks of `victim`."""
        draft.is_starved = True
        if victim in self.running.ending:
            self.running.release_early(victim)
            return
        self._last_victim = victim
        draft.transfers += self.running.preempt(victim, self._preemption.kept_by(victim, self.blocks))
        draft.preempted.append(victim)

    def reclaim(self, num_blocks: int, spared: Sequence | None = None) -> bool:
        """Let a row of padding go; or the waiting sequences that keep blocks give up so many of them, the last in the
        queue first.

        False if there is no padding and nobody but `spared` keeps any.
        """
        if self.running.padding:
            padding.drop_last(self.running)
            return True
        holder = self.waiting.last_holder(spared)
        if holder is None:
            return False
        num_free = self.num_free_blocks + num_blocks
        while holder is not None and self.num_free_blocks < num_free:
            give_up(self.blocks, holder, num_free - self.num_free_blocks)
            if not holder.block_table:
                del self.waiting.holders[holder]
            holder = self.waiting.last_holder(spared)
        self.waiting.unblock_head()
        return True

    def _others_give_up(self, head: Sequence) -> bool:
        """Where no sequence runs, free blocks for the head of the queue, at the cost of those behind it.

        While a sequence runs, its end will free blocks, so that waiting sequences may keep their own.
        """
        if self.running.sequences or not self.waiting.head_blocked:
            return False
        num_needed = self.blocks.blocks_for(head.num_tokens) - len(head.block_table) + self.blocks.state_blocks
        return self.reclaim(num_needed - self.num_free_blocks, spared=head)

    def _preempt_one(self, draft: StepDraft, candidates: dict[Sequence, None]) -> Sequence:
        """Take the blocks of one of `candidates`, which are in order of admission."""
        victim = self._preemption.victim(reversed(candidates), self._last_victim, self.blocks.pool)
        self.preempt(draft, victim)
        return victim

    def candidates(self) -> dict[Sequence, None]:
        """Who may give way, in order of admission: not those into whose blocks a transfer writes."""
        running = self.running
        if not running.parked:
            return running.sequences
        return {s: None for s in running.sequences if s not in running.parked}
