"""Samples of one prompt: forks of the sequence that computed it, which share its blocks until they write to them."""

from __future__ import annotations

from collections import Counter

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.kept_blocks import name_content
from engine.core.kv.tiers.tier import Transfer
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


def fork(running: RunningSet, blocks: BlockManager, sequence: Sequence) -> list[Sequence]:
    """Make the other sequences of the request of `sequence`, whose prompt is computed; returns all of them."""
    name_content(blocks, sequence, sequence.num_computed_tokens)
    forks = [_forked_from(sequence) for _ in range(sequence.num_forks)]
    running.num_reserved -= len(forks)
    for each in forks:
        blocks.share(each)
        running.seat(each)
    running.forked |= dict.fromkeys([sequence, *forks])
    return [sequence, *forks]


def unshare(running: RunningSet, blocks: BlockManager) -> list[Transfer]:
    """Give forked sequences copies of the shared blocks that they write to in the next decode step."""
    writers = [sequence for sequence in running.forked if sequence in running.decodes.sequences]
    copies = [blocks.copy_on_write(s) for s in writers if blocks.must_copy(s)]
    for sequence in writers:  # those that sit the step out stay
        del running.forked[sequence]
    return copies


def num_shared_blocks(running: RunningSet, blocks: BlockManager) -> int:
    """How many blocks `unshare` takes: the last that holds a shared block keeps it."""
    writers = [s for s in running.forked if s in running.decodes.sequences and blocks.must_copy(s)]
    counts = Counter(s.block_table[(s.num_tokens - 1) // blocks.block_size] for s in writers)
    return sum(min(count, blocks.pool.num_references(block) - 1) for block, count in counts.items())


def _forked_from(sequence: Sequence) -> Sequence:
    """Another sequence of the request with the same tokens and blocks; the caller counts the references."""
    sequence.num_forks -= 1
    prompt_hashes = None if sequence.hashes is None else sequence.hashes.part(0, sequence.num_registered_blocks)
    token_ids = None if sequence.token_ids is None else sequence.token_ids.copy()
    another = Sequence(sequence.request, token_ids, prompt_hashes)
    another.end_length = sequence.end_length
    another.num_forks = 0
    another.block_table = sequence.block_table.copy()
    another.num_registered_blocks = sequence.num_registered_blocks
    another.add_tokens(sequence.num_output_tokens)
    another.set_computed(sequence.num_computed_tokens)
    sequence.request.sequences.append(another)
    return another
