"""Continuous batching: decides, step by step, which sequences compute how many tokens in which blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from engine.core.block_manager import BlockManager
from engine.core.plan import StepDraft, StepOutcome, StepPlan
from engine.core.policy import Policy
from engine.core.running_set import RunningSet
from engine.core.sequence import RequestRefusedError, Sequence, SequenceStatus
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import WaitingQueue

Allocation = Literal["prompt", "chunk"]
Queue = Literal["priority", "fcfs"]


class Scheduler:
    """Runs the requests given to `add` through steps: `schedule`, execute the plan, `commit`, and again.

    Args:
        blocks: the KV block pool.
        policy: what a step is made of.
        max_num_seqs: bound on the running sequences.
        max_num_batched_tokens: bound on the tokens of a step; at least `max_num_seqs`.
        max_model_len: bound on prompt and output tokens of a sequence; the pool is one too.
        watermark: share of the pool that an admission leaves free while others run, so that they can grow.
        allocation: when a prompt that is cut gets its blocks: "prompt" all at its admission, "chunk" those of a chunk
            when that is planned, so that decodes may take them before. Either way it is admitted only if all fit.
        queue: who is admitted first: "priority" the most urgent, and among equals the first come, "fcfs" the first come
            whatever its priority.
        async_scheduling: each step is planned while the one before it runs, knowing how many tokens that gives but not
            yet freed of what it ends: a sequence keeps its seat and its blocks for the planning of one more step.
        max_padding: for engines that pad the prompts of a step to the longest of them: how many tokens of padding it
            may have; with them it keeps to `max_num_batched_tokens`. None for engines that do not pad.
        counts_scattered: tell in plans how many tokens lie scattered, which takes time for each request.

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
        allocation: Allocation = "prompt",
        queue: Queue = "priority",
        async_scheduling: bool = False,
        max_padding: int | None = None,
        counts_scattered: bool = True,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_seqs={max_num_seqs} must be at least 1 and at most "
                f"max_num_batched_tokens={max_num_batched_tokens}"
            )
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark={watermark} must be in [0, 1)")
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        pool_tokens = blocks.num_blocks * blocks.block_size
        self.max_model_len = pool_tokens if max_model_len is None else min(max_model_len, pool_tokens)
        self.async_scheduling = async_scheduling
        self._allocates_chunks = allocation == "chunk"
        self._waiting = WaitingQueue(ignores_priority=queue == "fcfs")
        self._running = RunningSet(
            blocks, self._waiting, async_scheduling=async_scheduling, counts_scattered=counts_scattered
        )
        self._policy = policy
        self._planner = StepPlanner(
            blocks,
            self._waiting,
            self._running,
            policy.victim,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            watermark_blocks=math.ceil(watermark * blocks.num_blocks),
            allocates_chunks=self._allocates_chunks,
            max_padding=max_padding,
        )
        self._sequences: dict[int, Sequence] = {}
        self._num_added = 0
        self._unreported_victims: list[Sequence] = []  # preempted while planning a step that came out empty
        self._planned = False

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running.sequences)

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
            self._running.abort(sequence)
        return sequence

    # -- a step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: int) -> StepPlan | None:
        """Plan the next step at the time `now`; None when no request is left.

        With `async_scheduling`, also None when all that could have been planned while the last step ran had to wait
        for its end: call again, after adding what has arrived meanwhile.
        """
        assert not self._planned, "commit the last plan first"
        if not self._sequences:
            self._running.release_ended()
            return None
        draft = StepDraft(now)
        self._policy.compose(self._planner, draft)
        if self._running.ending:
            self._running.release_ended()
        if not draft.prefills and not draft.num_decodes:
            assert self.async_scheduling, "an empty step"
            self._unreported_victims += draft.preempted
            return None
        self._planned = True
        if self._unreported_victims:
            draft.preempted[:0] = self._unreported_victims
            self._unreported_victims.clear()
        decodes = self._running.decodes
        return StepPlan(
            prefills=draft.prefills,
            decodes=decodes.sequences.keys() if draft.num_decodes else (),
            num_decodes=draft.num_decodes,
            num_context_tokens=decodes.num_context_tokens if draft.num_decodes else 0,
            num_squared_context_tokens=decodes.num_squared_context_tokens if draft.num_decodes else 0,
            num_scattered_tokens=decodes.num_scattered_tokens if draft.num_decodes else 0,
            fresh_decodes=list(decodes.fresh) if draft.num_decodes else [],
            admitted=draft.admitted,
            preempted=draft.preempted,
            copies=draft.copies,
            growth=draft.growth,
            horizon=self._horizon(draft),
            num_steps=1,
            num_running=len(self._running.sequences),
            num_waiting=len(self._waiting),
            num_used_blocks=self.blocks.num_used_blocks,
        )

    def extend(self, plan: StepPlan, num_steps: int) -> StepPlan:
        """Let `plan` cover `num_steps` decode steps, at most its horizon, and take the blocks they need."""
        assert self._planned and 1 <= num_steps <= plan.horizon
        growth = plan.growth.copy()
        grow, due_in = self._running.grow, self._running.decodes.due
        for ahead in range(1, num_steps):
            if due := due_in(ahead):
                growth.append(grow(ahead, due))
        return plan._replace(num_steps=num_steps, growth=growth)

    def commit(self, plan: StepPlan, now: int, stopped: Mapping[Sequence, int] | None = None) -> StepOutcome:
        """Account for an executed plan that ended at `now`.

        Args:
            stopped: sequences that met a stop condition in this plan, with the number of tokens they generated past it.
        """
        assert self._planned
        self._planned = False
        stopped = stopped or {}
        finished: list[Sequence] = []
        if plan.num_decodes:
            finished = self._running.commit_decodes(plan.num_steps, now, stopped)
        resumed_gaps: list[int] = []
        for chunk in plan.prefills:
            if self._running.commit_chunk(chunk, now, stopped, resumed_gaps):
                finished.append(chunk.sequence)
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
        decodes = self._running.decodes
        limit = decodes.steps_until_finish()
        if self._waiting and len(self._running.sequences) < self.max_num_seqs:
            if not self._waiting.head_blocked:
                return 1
            if self._waiting.suppliers:
                limit = min(limit, self._running.steps_until_supply())
        return decodes.affordable_steps(limit, self.blocks.num_free_blocks) if limit > 1 else 1

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Prove the invariants of the scheduler, its running set and its pool; raises AssertionError."""
        running, waiting = self._running, list(self._waiting)
        running.check_integrity()
        assert len(running.sequences) <= self.max_num_seqs
        assert all(not s.block_table and s.num_computed_tokens == 0 for s in waiting)
        assert {*waiting, *running.sequences} == {*self._sequences.values(), *running.ending}
        for sequence in running.sequences:
            num_held = sequence.num_computed_tokens
            if sequence in running.prefilling and not self._allocates_chunks:
                num_held = sequence.num_tokens
            assert len(sequence.block_table) == self.blocks.blocks_for(num_held)
