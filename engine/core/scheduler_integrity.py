"""Proof of the scheduler's invariants, for tests: every sequence in one place, with the blocks that its tokens need."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Request, Sequence, SequenceStatus


def check_states(lane: RunningSet) -> None:
    """Prove that each sequence of a lane is in the one state that its tokens say; raises AssertionError."""
    lane.decodes.check_integrity()
    states: list[Collection[Sequence]] = [
        lane.prefilling, lane.decodes.sequences, lane.paused, lane.parked, lane.ending,
    ]  # fmt: skip
    assert sum(map(len, states)) == len(lane.sequences), "a sequence is in two states or in none"
    assert set().union(*states) == lane.sequences.keys()
    assert lane.num_reserved == sum(s.num_forks for s in lane.sequences)
    assert lane.flights or not lane.ending
    assert all(row in lane.decodes.sequences or row in lane.paused for row in lane.padding), "padding is in no step"
    assert not lane.padding.keys() & lane.decodes.findable.keys(), "what padding adds can be found"
    assert not lane.padding or len(lane.padding) + len(lane.ending) < len(lane.sequences), "padding outlives its batch"
    for sequence in lane.sequences:
        assert (sequence.status is SequenceStatus.FINISHED) == (sequence in lane.ending)
        assert (sequence.status is SequenceStatus.PARKED) == (sequence in lane.parked)
        assert (sequence.status is SequenceStatus.PADDING) == (sequence in lane.padding)


def check_places(
    lanes: list[RunningSet], waiting: list[Sequence], unfinished: Iterable[Request], num_seats: int
) -> None:
    """Prove that each sequence is waiting, or running in one lane; raises AssertionError."""
    for lane in lanes:
        check_states(lane)
    running = [sequence for lane in lanes for sequence in lane.sequences]
    assert sum(lane.num_seats for lane in lanes) <= num_seats
    assert all((s.num_computed_tokens > 0) == bool(s.host_blocks or s.block_table) for s in waiting)
    assert not any(s.host_blocks and s.block_table for s in waiting), "one that waits keeps blocks in two tiers"
    ending = {sequence for lane in lanes for sequence in (*lane.ending, *lane.padding)}
    known = {sequence for request in unfinished for sequence in request.sequences}
    placed = {sequence for sequence in known if sequence.status is not SequenceStatus.FINISHED} | ending
    assert {*waiting, *running} == placed, "a sequence is lost, or kept after its end"
    assert len(placed) == len(waiting) + len(running), "a sequence is in two places"


def check_tables(
    lanes: list[RunningSet], waiting: list[Sequence], blocks: BlockManager, *, allocates_chunks: bool
) -> None:
    """Prove that each sequence holds the blocks of its tokens, and that the pool agrees."""
    running = [sequence for lane in lanes for sequence in lane.sequences]
    held = [sequence for lane in lanes for sequence in lane.held]
    blocks.check_integrity([*waiting, *running, *held])
    for sequence in waiting:
        if blocks.connector is not None and sequence in blocks.connector.loads.waiting:
            assert len(sequence.block_table) == blocks.blocks_for(sequence.num_computed_tokens)
        elif sequence.block_table:
            assert len(sequence.block_table) * blocks.block_size == sequence.num_computed_tokens < sequence.num_tokens
    if isinstance(blocks, ContiguousManager):
        return
    for lane in lanes:
        for sequence in lane.sequences:
            num_held = sequence.num_computed_tokens
            if sequence in lane.prefilling and not allocates_chunks:
                num_held = sequence.num_tokens
            # Room for drafts that were not accepted is kept: of the last step, and where that was planned ahead, of the
            # one before it.
            is_decoding = sequence in lane.decodes.sequences or sequence in lane.paused
            num_spare = (1 + lane.lag) * (lane.decodes.tokens_per_decode - 1) * is_decoding
            if not lane.flights and sequence not in lane.parked:
                most = blocks.blocks_for(num_held + num_spare)
                assert blocks.blocks_for(num_held) <= len(sequence.block_table) <= most
