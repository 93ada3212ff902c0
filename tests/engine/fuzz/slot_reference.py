"""What the slots of the pool are used for, counted one by one: the reference of `engine.core.running.slots`."""

from __future__ import annotations

import numpy as np

from engine.core.kv.prefix_match import NO_MATCH
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence


def check_slots(scheduler: Scheduler, plan: StepPlan) -> None:
    """Prove the counts of a plan that was just made."""
    blocks = scheduler.blocks
    size = blocks.block_size
    computed: dict[Sequence, int] = {}
    for flight in (flight for lane in scheduler._lanes for flight in lane.flights if not flight.is_advanced):
        computed |= {chunk.sequence: chunk.num_tokens for chunk in flight.plan.prefills}
        computed |= dict.fromkeys(flight.plan.decodes, 1) if flight.plan.num_decodes else {}
    held, written, kept = (np.zeros((blocks.num_blocks, size), bool) for _ in range(3))
    holders = [s for s in scheduler.waiting if s.block_table]
    for running in scheduler._lanes:
        holders += [*running.held, *(running.sequences.keys() - running.ending.keys())]
    padding = {row for running in scheduler._lanes for row in running.padding}
    for sequence in holders:
        table = np.asarray(sequence.block_table, int)
        end = sequence.num_computed_tokens + computed.get(sequence, 0)
        end = max(end, sequence.num_registered_blocks * size)
        positions = np.arange(len(table) * size).reshape(-1, size)
        held[table] = True
        if sequence in padding:
            continue
        end = min(end, sequence.end_length - 1)  # nobody needs the KV of a last token
        written[table] |= positions < end
        kept[table] |= (positions >= end) & (positions < _end_of_reserved(scheduler, sequence))
    assert plan.num_used_blocks == held.any(axis=1).sum()
    assert plan.num_kv_tokens == written.sum(), "slots with tokens are miscounted"
    assert plan.num_reserved_slots == kept.sum(), "reserved slots are miscounted"
    assert plan.num_external_slots == _num_useless(scheduler), "useless slots are miscounted"


def _end_of_reserved(scheduler: Scheduler, sequence: Sequence) -> int:
    """Up to which token the slots of a sequence are kept for tokens to come."""
    if isinstance(scheduler.blocks, ContiguousManager):
        return sequence.end_length - 1
    return 0 if sequence.is_prefilled else sequence.num_tokens


def _num_useless(scheduler: Scheduler) -> int:
    """Slots of all holes, found block by block, where none is large enough for the head of the queue."""
    blocks, waiting = scheduler.blocks, scheduler.waiting
    if not isinstance(blocks, ContiguousManager) or not waiting:
        return 0
    held = {block for lane in scheduler._lanes for sequence in lane.sequences for block in sequence.block_table}
    largest = run = num_free = 0
    for block in range(blocks.num_blocks):
        run = 0 if block in held else run + 1
        num_free += block not in held
        largest = max(largest, run)
    needed = blocks.blocks_needed(waiting.head, NO_MATCH, 0)
    return num_free * blocks.block_size if needed > largest else 0
