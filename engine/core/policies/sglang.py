"""The scheduler of SGLang 0.5.23: prompts before decodes, admission by an estimate of what the running requests will
still generate, and retraction when it was too low."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from engine.core.admission.listed_queue import ListedQueue
from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.hashing import chain_hash
from engine.core.kv.radix import RadixManager
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT, WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.planning.prefill_budget import MOST_NEW_TOKENS, NewTokenRatio, PrefillBudget, Verdict, max_new_tokens
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence

SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "random")
_MOST_MATCHED = 128  # requests in the queue that are matched with the cache before they are sorted
_REFRESH_INTERVAL = 32  # passes between accesses to the cached prefixes of all that wait
_SHORT_PREFIX = 32  # tokens: who has no longer a prefix in the cache waits for another one in the queue that has as long
_RETRACT_TOKENS = 20  # tokens for each that runs on, which retraction makes room for


@dataclass(frozen=True)
class SglangOptions:
    """Settings of `policy=sglang`, by the names that SGLang gives them.

    Attributes:
        schedule_policy: who is next: fcfs who came first, lpm who has the longest prefix in the cache, dfs-weight those
            of the subtree of the cache that the most wait for, lof who may generate the most, random anybody. A request
            that was retracted comes last, except as these rules have it.
        schedule_conservativeness: factor of the share of its `max_tokens` that a request is expected to generate.
        enable_mixed_chunk: decodes take part in steps with prompts.
        ignore_eos: all requests generate as many tokens as they may, as those of benchmarks do, and the scheduler
            knows it.
    """

    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.schedule_policy not in SCHEDULE_POLICIES:
            raise ValueError(f"schedule_policy={self.schedule_policy!r}: choose one of {', '.join(SCHEDULE_POLICIES)}")
        if not 0 <= self.schedule_conservativeness <= 100:
            raise ValueError(f"schedule_conservativeness={self.schedule_conservativeness:g}: must be >= 0 and <= 100")


class Sglang(BasePolicy):
    """Follows the loop of SGLang: the running batch, the prompts of the last step, which join it, and whether it is
    known that nobody can enter."""

    options_type: ClassVar[type[SglangOptions]] = SglangOptions
    chooses_victims = True
    uses_radix_tree = True

    def __init__(self, order: QueueOrder, preemption: Preemption, options: SglangOptions) -> None:
        super().__init__(order, preemption, options)
        self._options = options
        self._queue = ListedQueue()
        self._batch: list[Sequence] = []  # those that decode, in the order of SGLang's batch
        self._joining: list[Sequence] | None = None  # who was in the last step, if that had prompts
        self._chunked: Sequence | None = None  # the prompt that is cut
        self._is_full = False
        self._ratio = NewTokenRatio(options.schedule_conservativeness)
        self._num_passes = 0
        self._num_refreshes = 0
        self._last: Sequence | None = None  # one of those of the last step

    def make_queue(self) -> ListedQueue:
        return self._queue

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        """For the horizon only: while the batch is full nobody is looked at."""
        return WAIT if self._is_full else WAIT_FOR_A_STEP

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        blocks = planner.admission.blocks
        assert isinstance(blocks, RadixManager), "policy=sglang needs eviction=radix"
        self._follow(planner, blocks)
        self._prefill(planner, draft, blocks)
        if not draft.prefills:
            self._decode(planner, draft, blocks)
        elif self._options.enable_mixed_chunk:
            self._mix(planner, draft, blocks)

    def _follow(self, planner: StepPlanner, blocks: RadixManager) -> None:
        """Take note of what the last step brought."""
        running = planner.running
        blocks.keep_spare(0)
        self._ratio.follow(running.num_decode_steps)
        if not running.sequences and self._was_idle():
            self._ratio.reset()
        if self._chunked is not None and self._chunked in running.prefilling:
            blocks.checkpoint(self._chunked, self._chunked.num_computed_tokens)
        else:
            self._chunked = None
        if self._joining is not None:
            batch = [each for each in self._joining if each in running.sequences and each is not self._chunked]
            self._is_full &= bool(self._batch) and len(batch) == len(self._joining)
            self._batch += batch
            self._joining = None
        self._keep([each for each in self._batch if each in running.sequences])
        self._is_full &= bool(self._batch)

    def _was_idle(self) -> bool:
        """Whether nobody was there between the last step and the arrival of those who wait now."""
        end = None if self._last is None else self._last.request.finish_time
        return end is None or all(each.request.arrival_time > end for each in self._queue)

    def _keep(self, batch: list[Sequence]) -> None:
        """Go on with those of the batch that are left; if these are fewer, somebody may fit."""
        self._is_full &= len(batch) == len(self._batch)
        self._batch = batch

    # -- prompts --------------------------------------------------------------------------------------------------

    def _prefill(self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager) -> None:
        running, queue, seats = planner.running, self._queue, planner.limits.max_num_seqs
        if (self._is_full or not queue) and self._chunked is None:
            return
        num_left = min(seats - len(self._batch), seats - len(running.sequences))
        if num_left <= 0 and self._chunked is None:
            self._is_full = True
            return
        self._sort(blocks)
        budget = PrefillBudget(
            blocks,
            planner.max_num_batched_tokens,
            may_cut=planner.limits.cuts_prompts,
            num_mixed=len(self._batch) if self._options.enable_mixed_chunk else 0,
            num_reserved=sum([self._reserved(planner, each) for each in self._batch]),
        )
        chunks: dict[Sequence, int] = {}
        if self._chunked is not None and not self._continue(planner, blocks, budget, chunks):
            return
        num_left += len(chunks)
        while queue and budget.verdict is not Verdict.STEP_IS_FULL:
            self._is_full |= len(chunks) >= min(num_left, seats - len(self._batch))
            if self._is_full:
                break
            head = queue.head
            match = blocks.match(head)
            num_cached = match.num_cached_tokens
            answer = budget.admit(head, num_cached, head.num_output_tokens, is_first=not chunks)
            if answer is Verdict.NO_MEMORY:
                self._is_full = bool(chunks or self._batch)
            if isinstance(answer, Verdict):
                break
            is_cut = num_cached + answer < head.num_tokens
            queue.pop()
            draft.transfers += blocks.admit(head, match, num_cached)
            running.start(head, match, draft.now)
            draft.admitted.append(head)
            chunks[head] = answer
            budget.charge(head, answer, is_cut=is_cut)
            self._chunked = head if is_cut else self._chunked
            if budget.verdict is not Verdict.CONTINUE:
                self._is_full = budget.verdict is Verdict.NO_MEMORY
                break
        self._plan(planner, draft, blocks, chunks)

    def _continue(
        self, planner: StepPlanner, blocks: RadixManager, budget: PrefillBudget, chunks: dict[Sequence, int]
    ) -> bool:
        """Go on with the prompt that was cut; False if its blocks are not free, where SGLang fails."""
        chunked = self._chunked
        assert chunked is not None
        left = chunked.num_tokens - chunked.num_computed_tokens
        num_tokens = budget.cut(left)
        if num_tokens <= 0 or planner.missing_blocks(chunked, num_tokens) > blocks.num_free_blocks:
            return False
        chunks[chunked] = num_tokens
        budget.charge(chunked, num_tokens, is_cut=num_tokens < left)
        if num_tokens == left:
            self._chunked = None
        return True

    def _plan(
        self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager, chunks: dict[Sequence, int]
    ) -> None:
        if not chunks:
            return
        num_tokens = sum(chunks.values())
        blocks.evict_for(num_tokens + len(chunks) * blocks.block_size if blocks.block_size > 1 else num_tokens)
        for sequence, count in chunks.items():
            planner.extend(sequence, count)
            planner.plan_chunk(draft, sequence, count)
        self._joining = [*chunks]
        self._last = self._joining[0]

    def _sort(self, blocks: RadixManager) -> None:
        """Put the queue in order; of equals, those who were before others stay before them."""
        queue, rule = self._queue.sequences, self._options.schedule_policy
        self._num_passes += 1
        if not blocks.enable_prefix_caching or rule == "lpm" and len(queue) > _MOST_MATCHED:
            rule = rule if rule in ("lof", "random") else "fcfs"
        if rule == "lpm":
            lengths = self._match(blocks)
            queue.sort(key=lambda each: -lengths[each])
        elif rule == "dfs-weight":
            self._match(blocks)
            queue[:] = [queue[i] for i in blocks.tree.depth_first([blocks.end_of(each) for each in queue])]
        elif rule == "lof":
            queue.sort(key=lambda each: -max_new_tokens(each))
        elif rule == "random":
            queue.sort(key=lambda each: chain_hash(self._num_passes, [each.request_id & 0x7FFFFFFF]))
        if rule in ("lpm", "dfs-weight") or not queue or not blocks.enable_prefix_caching:
            return
        if self._num_refreshes % _REFRESH_INTERVAL == 0:
            for sequence in reversed(queue[:_MOST_MATCHED]):
                blocks.touch(sequence)
        self._num_refreshes += 1

    def _match(self, blocks: RadixManager) -> dict[Sequence, float]:
        """Tokens that each in the queue has in the cache; minus infinity for those who wait for another one in the
        queue, which has the same prefix."""
        lengths: dict[Sequence, float] = {}
        coming: set[int] = set()
        for sequence in self._queue:
            num_tokens = blocks.touch(sequence)
            lengths[sequence] = min(num_tokens, sequence.num_tokens - 1)
            if num_tokens > _SHORT_PREFIX:
                continue
            hashes = blocks.full_hashes(sequence, sequence.num_tokens)
            num_coming = next((i for i, each in enumerate(hashes) if each not in coming), len(hashes))
            if num_coming * blocks.block_size >= _SHORT_PREFIX:
                lengths[sequence] = -math.inf
            else:
                coming.update(hashes)
        return lengths

    def _reserved(self, planner: StepPlanner, sequence: Sequence) -> float:
        """Tokens that one that runs is expected to generate."""
        left = min(max_new_tokens(sequence) - self._num_output(planner, sequence), MOST_NEW_TOKENS)
        return left * (1.0 if self._options.ignore_eos else self._ratio.current)

    def _num_output(self, planner: StepPlanner, sequence: Sequence) -> int:
        """Tokens that `sequence` has generated, without one that is under way."""
        running = planner.running
        is_coming = False
        if running.flights:
            flight = running.flights[-1]
            is_coming = flight.plan.num_decodes > 0 or sequence in flight.started or sequence in running.ending
        return sequence.num_output_tokens - is_coming

    # -- decodes --------------------------------------------------------------------------------------------------

    def _fits(self, planner: StepPlanner, blocks: RadixManager) -> bool:
        num_due = planner.running.decodes.num_blocks_due()
        blocks.evict_for(num_due * blocks.block_size)
        return num_due <= blocks.num_free_blocks

    def _decode(self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager) -> None:
        batch = [each for each in self._batch if each not in planner.running.ending]
        is_ending = len(batch) < len(self._batch)
        self._keep(batch)
        if not batch:
            return
        fits = self._fits(planner, blocks)
        if not fits and is_ending:  # what ends gives back its blocks first
            return
        if fits:
            self._ratio.decay()
        elif not self._retract(planner, draft, blocks):
            return
        self._plan_decodes(planner, draft, blocks)

    def _retract(self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager) -> bool:
        """Let those give way who have generated the least, of equals those with the longest prompt; False if not even
        one can go on, which SGLang aborts."""

        def progress(sequence: Sequence) -> tuple[int, int]:
            return self._num_output(planner, sequence), -sequence.request.num_prompt_tokens

        batch, fits = sorted(self._batch, key=progress, reverse=True), False
        outputs = {each: self._num_output(planner, each) for each in batch}
        while not fits and len(batch) > 1:
            planner.preempt(draft, batch.pop())
            blocks.evict_for(len(batch) * _RETRACT_TOKENS)
            fits = self._fits(planner, blocks)
        self._keep(batch)
        _renumber(batch)
        num_output, num_new = sum(outputs[each] for each in batch), sum(map(max_new_tokens, batch))
        self._ratio.set((num_output + _RETRACT_TOKENS * len(batch)) / (num_new + 1))
        return fits

    def _mix(self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager) -> None:
        """Let the decodes take part in a step with prompts, if blocks are left for them."""
        self._keep([each for each in self._batch if each not in planner.running.ending])
        if self._batch and self._fits(planner, blocks):
            self._plan_decodes(planner, draft, blocks)
            assert self._joining is not None
            self._joining += self._batch
            _renumber(self._joining)
            self._batch = []

    def _plan_decodes(self, planner: StepPlanner, draft: StepDraft, blocks: RadixManager) -> None:
        if blocks.block_size > 1:  # SGLang makes room for a block of each
            blocks.keep_spare(len(self._batch))
        planner.plan_decodes(draft)
        self._ratio.note_planned()
        self._last = self._batch[0]


def _renumber(batch: list[Sequence]) -> None:
    """Let the order of admission, in which sequences that end in one step give back their blocks, be that of the
    batch."""
    for sequence, number in zip(batch, sorted(each.admission for each in batch), strict=True):
        sequence.admission = number


POLICY = Sglang
