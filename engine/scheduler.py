"""Continuous batching: decides, step by step, which sequences compute how many tokens in which blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engine.block_manager import BlockManager
from engine.decode_set import DecodeSet
from engine.plan import BlockGrowth, PrefillChunk, StepDraft, StepOutcome, StepPlan
from engine.policy import Policy
from engine.sequence import RequestRefusedError, Sequence, SequenceStatus
from engine.waiting_queue import WaitingQueue


class Scheduler:
    """Runs the requests given to `add` through steps: `schedule`, execute the plan, `commit`, and again.

    Args:
        blocks: the KV block pool.
        policy: what a step is made of.
        max_num_seqs: bound on the running sequences.
        max_num_batched_tokens: bound on the tokens of a step; at least `max_num_seqs`.
        max_model_len: bound on prompt and output tokens of a sequence; the pool is one too.
        watermark: share of the pool that an admission leaves free while others run, so that they can grow.

    Times are whatever the caller counts in; the scheduler only hands them on.
    """

    def __init__(
        self,
        blocks: BlockManager,
        policy: Policy,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int | None = None,
        watermark: float = 0.02,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_seqs={max_num_seqs} must be at least 1 and at most "
                f"max_num_batched_tokens={max_num_batched_tokens}"
            )
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark={watermark} must be in [0, 1)")
        self.blocks = blocks
        self.policy = policy
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        pool_tokens = blocks.num_blocks * blocks.block_size
        self.max_model_len = pool_tokens if max_model_len is None else min(max_model_len, pool_tokens)
        self.watermark_blocks = math.ceil(watermark * blocks.num_blocks)
        self._waiting = WaitingQueue()
        self._running: dict[Sequence, None] = {}  # in order of admission
        self._prefilling: dict[Sequence, None] = {}  # those of _running that are not decoding yet
        self._decodes = DecodeSet(blocks.block_size)
        self._sequences: dict[int, Sequence] = {}
        self._num_added = 0
        self._last_decode_time: int | None = None
        self._last_victim: Sequence | None = None
        self._planned = False

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def unfinished(self) -> list[Sequence]:
        """All requests that are waiting or running."""
        return list(self._sequences.values())

    def add(self, sequence: Sequence) -> None:
        """Queue a request.

        Raises:
            RequestRefusedError: the prompt is empty, or longer than the model or the pool allow with one token of
                output; `max_tokens` is below 1; or the id is in use.
        """
        prompt, longest = sequence.num_prompt_tokens, self.max_model_len
        if prompt < 1:
            raise RequestRefusedError("the prompt is empty")
        if sequence.max_tokens < 1:
            raise RequestRefusedError(f"max_tokens={sequence.max_tokens} must be at least 1")
        if prompt >= longest:
            raise RequestRefusedError(
                f"a prompt of {prompt} tokens and its output exceed the limit of {longest} tokens"
            )
        if sequence.request_id in self._sequences:
            raise RequestRefusedError(f"request id {sequence.request_id!r} is in use")
        sequence.end_length = min(prompt + sequence.max_tokens, longest)
        sequence.order = self._num_added
        self._num_added += 1
        self._sequences[sequence.request_id] = sequence
        self._waiting.push(sequence)

    def abort(self, request_id: int) -> Sequence:
        """Take a request out, between a commit and the next schedule.

        Raises:
            KeyError: no such request is waiting or running.
        """
        assert not self._planned, "abort between commit and schedule"
        sequence = self._sequences.pop(request_id)
        if sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
            sequence.status = SequenceStatus.ABORTED
        else:
            self._retire(sequence, SequenceStatus.ABORTED)
        return sequence

    # -- a step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: int) -> StepPlan | None:
        """Plan the next step; None when no request is left."""
        assert not self._planned, "commit the last plan first"
        if not self._sequences:
            return None
        draft = StepDraft(now)
        self.policy.compose(self, draft)
        self._planned = True
        decodes = self._decodes
        return StepPlan(
            prefills=draft.prefills,
            decodes=decodes.sequences.keys() if draft.num_decodes else (),
            num_decodes=draft.num_decodes,
            num_context_tokens=decodes.num_context_tokens if draft.num_decodes else 0,
            fresh_decodes=list(decodes.fresh) if draft.num_decodes else [],
            admitted=draft.admitted,
            preempted=draft.preempted,
            copies=draft.copies,
            growth=draft.growth,
            horizon=self._horizon(draft),
            num_steps=1,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_used_blocks=self.blocks.num_used_blocks,
        )

    def extend(self, plan: StepPlan, num_steps: int) -> StepPlan:
        """Let `plan` cover `num_steps` decode steps, at most its horizon, and take the blocks they need."""
        assert self._planned and 1 <= num_steps <= plan.horizon
        growth = plan.growth.copy()
        for ahead in range(1, num_steps):
            if due := self._decodes.due(ahead):
                growth.append(self._grow(ahead, due))
        return plan._replace(num_steps=num_steps, growth=growth)

    def commit(self, plan: StepPlan, now: int, stopped: Mapping[Sequence, int] | None = None) -> StepOutcome:
        """Account for an executed plan that ended at `now`.

        Args:
            stopped: sequences that met a stop condition in this plan, with the number of tokens they generated past it.
        """
        assert self._planned
        self._planned = False
        finished: list[Sequence] = []
        if plan.num_decodes:
            finished = self._advance_decodes(plan.num_steps, stopped or {})
            self._last_decode_time = now
        resumed_gaps: list[int] = []
        for chunk in plan.prefills:
            self._commit_chunk(chunk, now, stopped or {}, finished, resumed_gaps)
        if plan.prefills:
            self._waiting.head_blocked = False  # what was computed may shorten the prompt of the first in the queue
        self.blocks.settle()
        for sequence in finished:
            sequence.finish_time = now
            del self._sequences[sequence.request_id]
        return StepOutcome(finished, resumed_gaps)

    def _horizon(self, draft: StepDraft) -> int:
        if draft.prefills or not draft.num_decodes:
            return 1
        if self._waiting and not self._waiting.head_blocked and len(self._running) < self.max_num_seqs:
            return 1
        limit = self._decodes.steps_until_finish()
        return self._decodes.affordable_steps(limit, self.blocks.num_free_blocks) if limit > 1 else 1

    # -- building blocks for policies -----------------------------------------------------------------------------

    def decode(self, draft: StepDraft) -> None:
        """Let every decoding sequence compute one token, preempting until the blocks for that are there."""
        while len(due := self._decodes.due()) > self.blocks.num_free_blocks:
            victim = self.policy.victim(reversed(self._running), self._last_victim)
            self._last_victim = victim
            self._preempt(victim)
            draft.preempted.append(victim)
        draft.num_decodes = len(self._decodes)
        if due:
            draft.growth.append(self._grow(0, due))

    def continue_prefills(self, draft: StepDraft, budget: int) -> int:
        """Go on with prompts that were cut, within `budget` tokens; returns what is left of it."""
        for sequence in self._prefilling:
            if budget == 0:
                break
            budget -= self._plan_chunk(draft, sequence, budget)
        return budget

    def admit(self, draft: StepDraft, budget: int, *, cut_any: bool) -> None:
        """Admit from the head of the queue while seats, blocks and `budget` tokens last.

        A prompt that exceeds the budget is cut if `cut_any`, else only as the first of the step.
        """
        blocks, waiting = self.blocks, self._waiting
        while waiting and not waiting.head_blocked and len(self._running) < self.max_num_seqs and budget > 0:
            sequence = waiting.head
            num_tokens = sequence.num_tokens
            match = blocks.match(sequence)
            if num_tokens - match.num_cached_tokens > budget and draft.prefills and not cut_any:
                return
            reserve = self.watermark_blocks if self._running else 0
            if blocks.blocks_needed(match, num_tokens) + reserve > blocks.num_free_blocks:
                waiting.head_blocked = True
                return
            waiting.pop()
            copy = blocks.admit(sequence, match, num_tokens)
            if copy:
                draft.copies.append(copy)
            self._start_prefill(sequence, match.num_cached_tokens, draft.now)
            draft.admitted.append(sequence)
            budget -= self._plan_chunk(draft, sequence, budget)

    # -- transitions of a sequence --------------------------------------------------------------------------------

    def _start_prefill(self, sequence: Sequence, num_cached_tokens: int, now: int) -> None:
        sequence.status = SequenceStatus.PREFILLING
        sequence.set_computed(num_cached_tokens)
        if sequence.first_scheduled_time is None:
            sequence.first_scheduled_time = now
            sequence.num_cached_tokens = num_cached_tokens
        self._running[sequence] = None
        self._prefilling[sequence] = None

    def _plan_chunk(self, draft: StepDraft, sequence: Sequence, budget: int) -> int:
        start = sequence.num_computed_tokens
        left = sequence.num_tokens - start
        num_tokens = min(left, budget)
        if start < sequence.num_lost_tokens:
            sequence.num_recomputed_tokens += min(num_tokens, sequence.num_lost_tokens - start)
        draft.prefills.append(PrefillChunk(sequence, start, num_tokens, num_tokens == left))
        if sequence.has_content:
            self.blocks.register(sequence, start + num_tokens)
        return num_tokens

    def _commit_chunk(
        self,
        chunk: PrefillChunk,
        now: int,
        stopped: Mapping[Sequence, int],
        finished: list[Sequence],
        resumed_gaps: list[int],
    ) -> None:
        sequence = chunk.sequence
        sequence.set_computed(chunk.start + chunk.num_tokens)
        if not chunk.is_last:
            return
        del self._prefilling[sequence]
        sequence.add_tokens(1)
        if sequence.first_token_time is None:
            sequence.first_token_time = now
        elif sequence.last_token_time is not None:
            resumed_gaps.append(now - sequence.last_token_time)
        sequence.last_token_time = now
        if sequence.num_tokens >= sequence.end_length or sequence in stopped:
            self._retire(sequence, SequenceStatus.FINISHED)
            finished.append(sequence)
        else:
            self._decodes.join(sequence)

    def _advance_decodes(self, num_steps: int, stopped: Mapping[Sequence, int]) -> list[Sequence]:
        decodes = self._decodes
        if decodes.num_findable:
            self._register_filled(num_steps, stopped)
        finished = decodes.advance(num_steps)
        for sequence in stopped:
            if sequence in decodes.sequences:
                decodes.remove(sequence)
                finished.append(sequence)
        for sequence in finished:
            self._leave_batch(sequence, SequenceStatus.FINISHED)
            if sequence in stopped:
                sequence.add_tokens(-stopped[sequence])
                self.blocks.register(sequence, sequence.num_tokens - 1)
            self.blocks.release(sequence)
        return finished

    def _register_filled(self, num_steps: int, stopped: Mapping[Sequence, int]) -> None:
        """Register the blocks that the decodes fill in the next `num_steps` steps, in the order they fill."""
        for ahead in range(1, num_steps + 1):
            for sequence in self._decodes.due(ahead):
                if sequence.has_content and sequence not in stopped:
                    filled = sequence.num_registered_blocks + 1
                    self.blocks.register(sequence, filled * self.blocks.block_size)

    def _grow(self, ahead: int, due: dict[Sequence, list[int]]) -> BlockGrowth:
        taken = self.blocks.take(len(due))
        for table, block in zip(due.values(), taken, strict=True):
            table.append(block)
        return BlockGrowth(ahead, list(due), taken)

    def _preempt(self, sequence: Sequence) -> None:
        """Throw away the KV of `sequence`; it goes back to its place in the queue with what it had generated."""
        if sequence.status is SequenceStatus.DECODING and sequence not in self._decodes.fresh:
            sequence.last_token_time = self._last_decode_time
        self._leave_batch(sequence, SequenceStatus.WAITING)
        sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.num_computed_tokens)
        sequence.num_preemptions += 1
        self.blocks.name_content(sequence)
        self.blocks.release(sequence)
        sequence.set_computed(0)
        self._waiting.push(sequence)

    def _retire(self, sequence: Sequence, status: SequenceStatus) -> None:
        self._leave_batch(sequence, status)
        self.blocks.release(sequence)

    def _leave_batch(self, sequence: Sequence, status: SequenceStatus) -> None:
        del self._running[sequence]
        if sequence in self._decodes.sequences:
            self._decodes.remove(sequence)
        else:
            self._prefilling.pop(sequence, None)
        sequence.leave(status)
        self._waiting.head_blocked = False

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Prove the invariants of the scheduler, its decode set and its pool; raises AssertionError."""
        self.blocks.check_integrity(self._running)
        self._decodes.check_integrity()
        waiting = list(self._waiting)
        assert len(self._running) <= self.max_num_seqs
        assert self._prefilling.keys() | self._decodes.sequences.keys() == self._running.keys()
        assert not self._prefilling.keys() & self._decodes.sequences.keys()
        assert all(not s.block_table and s.num_computed_tokens == 0 for s in waiting)
        assert {*waiting, *self._running} == set(self._sequences.values())
        for sequence in self._running:
            assert len(sequence.block_table) == self.blocks.blocks_for(
                max(sequence.num_computed_tokens, sequence.num_tokens - (sequence in self._decodes.sequences))
            )
