"""The prompts of a step, as SGLang admits them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.kv.trees.radix import RadixManager
from engine.core.plan import StepDraft
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence
from engine.core.sglang.batch import RunningBatch
from engine.core.sglang.budget import PrefillBudget, Verdict
from engine.core.sglang.queue import SglangQueue


def plan_prompts(
    planner: StepPlanner,
    draft: StepDraft,
    blocks: RadixManager,
    batch: RunningBatch,
    queue: SglangQueue,
    *,
    num_mixed: int,
    num_reserved: float,
) -> None:
    """Go on with the prompt that is cut, and admit from the queue; the numbers as those of `PrefillBudget`."""
    seats = planner.limits.max_num_seqs
    if (batch.is_full or not queue.sequences) and batch.chunked is None:
        return
    num_left = min(seats - len(batch.sequences), seats - len(planner.running.sequences))
    if num_left <= 0 and batch.chunked is None:
        batch.is_full = True
        return
    queue.sort(blocks)
    may_cut = planner.limits.cuts_prompts
    budget = PrefillBudget(
        blocks, planner.max_num_batched_tokens, may_cut=may_cut, num_mixed=num_mixed, num_reserved=num_reserved
    )
    prompts = _Prompts(planner, draft, blocks, batch, budget)
    chunks = prompts.chunks
    if batch.chunked is not None and not prompts.go_on(batch.chunked):
        return
    num_left = min(num_left + len(chunks), seats - len(batch.sequences))
    while queue.sequences and budget.verdict is not Verdict.STEP_IS_FULL:
        batch.is_full |= len(chunks) >= num_left
        verdict = Verdict.STEP_IS_FULL if batch.is_full else prompts.admit(queue)
        if verdict is Verdict.NO_MEMORY:
            batch.is_full = bool(chunks or batch.sequences)
        if verdict is not Verdict.CONTINUE:
            break
    if chunks:
        prompts.plan()
        batch.joining = [*chunks]


@dataclass
class _Prompts:
    """The prompts of a step that is being planned; `chunks` has the tokens of each."""

    planner: StepPlanner
    draft: StepDraft
    blocks: RadixManager
    batch: RunningBatch
    budget: PrefillBudget
    chunks: dict[Sequence, int] = field(default_factory=dict)

    def go_on(self, chunked: Sequence) -> bool:
        """Go on with the prompt that is cut; False if its blocks are not free, where SGLang fails."""
        left = chunked.num_tokens - chunked.num_computed_tokens
        num_tokens = self.budget.cut(left)
        if num_tokens <= 0 or self.planner.missing_blocks(chunked, num_tokens) > self.blocks.num_free_blocks:
            return False
        self._take(chunked, num_tokens, is_cut=num_tokens < left)
        return True

    def admit(self, queue: SglangQueue) -> Verdict:
        """Admit the head of the queue, without its blocks yet; returns whether the next one may be tried."""
        head = queue.head
        match = self.blocks.match(head)
        num_cached = match.num_cached_tokens
        answer = self.budget.admit(head, num_cached, is_first=not self.chunks)
        if isinstance(answer, Verdict):
            return answer
        queue.pop()
        self.draft.transfers += self.blocks.admit(head, match, num_cached)
        self.planner.running.start(head, match, self.draft.now)
        self.draft.admitted.append(head)
        self._take(head, answer, is_cut=num_cached + answer < head.num_tokens)
        return self.budget.verdict

    def _take(self, sequence: Sequence, num_tokens: int, *, is_cut: bool) -> None:
        self.chunks[sequence] = num_tokens
        self.budget.charge(sequence, num_tokens, is_cut=is_cut)
        if is_cut:
            self.batch.chunked = sequence
        elif self.batch.chunked is sequence:
            self.batch.chunked = None

    def plan(self) -> None:
        """Give the prompts their blocks, after all of them hold what is cached of them."""
        num_tokens = sum(self.chunks.values())
        if self.blocks.block_size > 1:  # SGLang makes room for one more block of each
            num_tokens += len(self.chunks) * self.blocks.block_size
        self.blocks.evict_for(num_tokens)
        for sequence, count in self.chunks.items():
            self.planner.extend(sequence, count)
            self.planner.plan_chunk(self.draft, sequence, count)
