"""The prompts of a step, as SGLang admits them."""

from __future__ import annotations

from engine.core.kv.radix import RadixManager
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
    if (batch.is_full or not queue) and batch.chunked is None:
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
    chunks: dict[Sequence, int] = {}
    if batch.chunked is not None and not _continue(planner, blocks, budget, batch, chunks):
        return
    num_left = min(num_left + len(chunks), seats - len(batch.sequences))
    while queue and budget.verdict is not Verdict.STEP_IS_FULL:
        batch.is_full |= len(chunks) >= num_left
        verdict = (
            Verdict.STEP_IS_FULL if batch.is_full else _admit(planner, draft, blocks, budget, batch, queue, chunks)
        )
        if verdict is Verdict.NO_MEMORY:
            batch.is_full = bool(chunks or batch.sequences)
        if verdict is not Verdict.CONTINUE:
            break
    if chunks:
        _plan(planner, draft, blocks, chunks)
        batch.joining = [*chunks]


def _continue(
    planner: StepPlanner,
    blocks: RadixManager,
    budget: PrefillBudget,
    batch: RunningBatch,
    chunks: dict[Sequence, int],
) -> bool:
    """Go on with the prompt that is cut; False if its blocks are not free, where SGLang fails."""
    chunked = batch.chunked
    assert chunked is not None
    left = chunked.num_tokens - chunked.num_computed_tokens
    num_tokens = budget.cut(left)
    if num_tokens <= 0 or planner.missing_blocks(chunked, num_tokens) > blocks.num_free_blocks:
        return False
    chunks[chunked] = num_tokens
    budget.charge(chunked, num_tokens, is_cut=num_tokens < left)
    if num_tokens == left:
        batch.chunked = None
    return True


def _admit(
    planner: StepPlanner,
    draft: StepDraft,
    blocks: RadixManager,
    budget: PrefillBudget,
    batch: RunningBatch,
    queue: SglangQueue,
    chunks: dict[Sequence, int],
) -> Verdict:
    """Admit the head of the queue, without its blocks yet; returns whether the next one may be tried."""
    head = queue.head
    match = blocks.match(head)
    num_cached = match.num_cached_tokens
    answer = budget.admit(head, num_cached, is_first=not chunks)
    if isinstance(answer, Verdict):
        return answer
    is_cut = num_cached + answer < head.num_tokens
    queue.pop()
    draft.transfers += blocks.admit(head, match, num_cached)
    planner.running.start(head, match, draft.now)
    draft.admitted.append(head)
    chunks[head] = answer
    budget.charge(head, answer, is_cut=is_cut)
    if is_cut:
        batch.chunked = head
    return budget.verdict


def _plan(planner: StepPlanner, draft: StepDraft, blocks: RadixManager, chunks: dict[Sequence, int]) -> None:
    """Give the prompts their blocks, after all of them hold what is cached of them."""
    num_tokens = sum(chunks.values())
    if blocks.block_size > 1:  # SGLang makes room for one more block of each
        num_tokens += len(chunks) * blocks.block_size
    blocks.evict_for(num_tokens)
    for sequence, count in chunks.items():
        planner.extend(sequence, count)
        planner.plan_chunk(draft, sequence, count)
