"""Beam search: the sequences of a request decode in step, and after each step some of them continue others.

    step k          chosen by the caller           step k + 1
    beam 0 ───▶ 0 ──────────────────────────────▶ 0 continues itself
    beam 1 ───▶ 1            ┌──────────────────▶ 1 continues 0: it gives up its blocks and shares those of 0
    beam 2 ───▶ 2 ───────────┼──────────────────▶ 2 continues itself

All beams of a request have the same length, so a beam that continues another keeps its place in the calendar of the
decodes: only its tokens and its block table change. The block that both write to next is copied by the first of them
that writes, as after a fork. While beams decode, every plan has a horizon of 1.

The beams of a request are preempted and admitted again together, because none can go on without the others:

    decoding ──suspend──▶ waiting ──seat────▶ prefilling, gathering ──last of them──▶ decoding
                                  ──swap_in──▶ parked, gathering ─────▲

`num_common_blocks` leading blocks were common to all. If they lost all their KV, the first beam computes these and its
own rest, then each of the others shares the common ones and computes its own rest. If they kept a prefix, the first one
waits as the holder of all, and whoever still has the common blocks goes on from what it kept. On the host a block is
kept once for all beams that shared it, and they share it again when they are back. Whoever is done waits in
`gathering`.
All blocks and seats are taken when the first beam is admitted. So a part of the beams never waits for another part that
is still in the queue, and a request that is alone always gets on: `longest_beam` bounds what its beams hold together.
"""

from __future__ import annotations

from collections import abc

from engine.core.decodes.interface import Decodes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.kept_blocks import name_content, num_common_blocks
from engine.core.kv.lower_tiers import swap_in_beams
from engine.core.kv.tier import Transfer
from engine.core.running.preemption import Keeps
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Request, Sequence, SequenceStatus


def in_place(parents: abc.Sequence[int]) -> list[int]:
    """Which child each beam becomes, given the parent of each child: a beam that has children becomes its first one.

    The other children, in order, go to the beams without children.
    """
    first = {parent: child for child, parent in reversed(list(enumerate(parents)))}
    others = (child for child, parent in enumerate(parents) if first[parent] != child)
    return [first[i] if i in first else next(others) for i in range(len(parents))]


def longest_beam(request: Request, num_blocks: int, block_size: int) -> int:
    """The most tokens of each beam for which `num_blocks` blocks are enough if the beams share only the prompt."""
    shared = request.num_prompt_tokens // block_size
    own = (num_blocks - shared) // request.num_sequences
    return (shared + own) * block_size + 1  # the last token is never in the cache


def obstacle(decodes: Decodes, plans_ahead: bool, pauses_decodes: bool) -> str | None:
    """Why a scheduler cannot serve beams; None if it can."""
    if plans_ahead:
        return "async_scheduling: beams of the next step are known when the step before it has ended"
    if pauses_decodes:
        return "policy: it lets single sequences sit out a step, and all beams of a request decode together"
    if decodes.tokens_per_decode > 1:
        return "speculation: all beams of a request gain one token per step"
    return None


def replace(running: RunningSet, blocks: BlockManager, request: Request, parents: abc.Sequence[int]) -> None:
    """Let beam i continue beam `parents[i]`; a beam that others continue must continue itself.

    It is called after the commit of a step that gave each beam a token. `token_ids` are copied, the last one included.
    """
    beams = request.sequences
    assert request in running.beams and all(parents[parent] == parent for parent in parents)
    for beam, parent in zip(beams, parents, strict=True):
        source = beams[parent]
        if beam is not source:
            name_content(blocks, source, source.num_computed_tokens)
            _take_over(blocks, beam, source)
            running.forked[source] = running.forked[beam] = None
            running.note_release()


def _take_over(blocks: BlockManager, beam: Sequence, source: Sequence) -> None:
    """Let `beam` give up its blocks and share those of `source`."""
    table, shared = beam.block_table, source.block_table
    start = len(table)
    while start and table[start - 1] != shared[start - 1]:
        start -= 1  # tables of beams are equal up to where they first differ
    blocks.pool.hold(shared[start:])
    num_registered = beam.num_registered_blocks
    blocks.pool.release(table[start:], (beam.block_hashes or [])[start:num_registered], max(0, num_registered - start))
    table[start:] = shared[start:]  # in place: the calendar of the decodes has this list
    beam.num_registered_blocks = source.num_registered_blocks
    beam.block_hashes = None if source.block_hashes is None else source.block_hashes.copy()
    if beam.token_ids is not None and source.token_ids is not None:
        first = min(start * blocks.block_size, source.num_computed_tokens)
        beam.token_ids[first:] = source.token_ids[first:]


def suspend(running: RunningSet, blocks: BlockManager, request: Request, keeps: Keeps) -> list[Transfer]:
    """Preempt all beams of a request, which all keep the same. The first stands for all of them in the queue."""
    beams = request.sequences
    if request.num_common_blocks is None:
        request.num_common_blocks = num_common_blocks(blocks, beams)
    copies: dict[int, int] = {}
    transfers = [transfer for beam in beams for transfer in running.give_up(beam, keeps, copies)]
    beams[0].num_forks = len(beams) - 1
    running.requeue(beams[0])
    return transfers


def swap_in(running: RunningSet, blocks: BlockManager, leader: Sequence) -> list[Transfer]:
    """Give all beams of a request, of which `leader` is the first, device blocks that their KV comes back into."""
    beams = leader.request.sequences
    leader.num_forks = 0
    transfers = swap_in_beams(blocks, beams)
    running.forked |= {beam: None for beam in beams if blocks.must_copy(beam)}
    return transfers


def resume_together(running: RunningSet, blocks: BlockManager, request: Request) -> None:
    """Let the beams of a request decode if the KV of all of them is back."""
    beams = request.sequences
    if all(beam in running.gathering and beam.is_prefilled for beam in beams):
        request.num_common_blocks = None
        for beam in beams:
            name_content(blocks, beam, beam.num_computed_tokens)
            blocks.register(beam, beam.num_computed_tokens)  # what they share, all of them know by its hash or none
            del running.gathering[beam]
            running.decodes.join(beam)
        running.beams[request] = None


def without_readmitted(sequences: dict[Sequence, None]) -> dict[Sequence, None]:
    """Those of `sequences` that can give way alone: of readmitted beams, one may be in the planned step already."""
    return {sequence: None for sequence in sequences if sequence.request.num_common_blocks is None}


def seat(running: RunningSet, blocks: BlockManager, leader: Sequence) -> list[Sequence]:
    """Seat the other beams of a request whose first was just admitted, with blocks of their own; returns them.

    They compute what they lack, but those that lost common blocks first wait until the first has computed these.
    """
    _, *others = leader.request.sequences
    common = leader.request.num_common_blocks
    assert common is not None
    running.num_reserved -= leader.num_forks
    leader.num_forks = 0
    blocks.extend(leader, leader.num_tokens)
    for beam in others:
        beam.status = SequenceStatus.PREFILLING
        running.seat(beam)
        if beam.block_table or not common:
            blocks.extend(beam, beam.num_tokens)
            running.prefilling[beam] = None
        else:
            beam.block_table = blocks.pool.take(blocks.blocks_for(beam.num_tokens) - common)
            running.gathering[beam] = None
    return others


def gather(running: RunningSet, blocks: BlockManager, beam: Sequence) -> list[Sequence]:
    """A readmitted beam has computed its last chunk; returns all beams of its request if the others have too."""
    request = beam.request
    leader, *others = beams = request.sequences
    common = request.num_common_blocks
    assert common is not None
    running.gathering[beam] = None
    blocks.index.enter((leader.block_hashes or [])[:common])  # the others may go on from within a run
    for other in (each for each in others if each in running.gathering and not each.num_computed_tokens):
        shared = leader.block_table[:common]
        blocks.pool.hold(shared)
        other.block_table[:0] = shared
        other.num_registered_blocks = min(common, leader.num_registered_blocks)
        other.set_computed(common * blocks.block_size)
        del running.gathering[other]
        running.prefilling[other] = None
    if not all(each in running.gathering for each in beams):
        return []
    request.num_common_blocks = None
    for each in beams:
        del running.gathering[each]
    return list(beams)


def check_beams(running: RunningSet) -> None:
    """Prove that the seated beams of each request are in step; raises AssertionError."""
    for request in {sequence.request: None for sequence in running.sequences}:
        if request.is_beam_search and len(request.sequences) > 1:
            _check_group(running, request)


def check_suspended(waiting: abc.Iterable[Sequence]) -> None:
    """Prove that of the waiting beams of a request all or none but the first keep what they had in common; raises
    AssertionError."""
    for request in {sequence.request: None for sequence in waiting}:
        if request.num_common_blocks is not None:
            num_kept = [len(beam.block_table) for beam in request.sequences]
            assert not any(num_kept[1:]) or min(num_kept) >= request.num_common_blocks, "beams keep no common prefix"


def _check_group(running: RunningSet, request: Request) -> None:
    beams = request.sequences
    is_suspended = request.num_common_blocks is not None
    assert len({beam.num_tokens for beam in beams}) == 1, "beams of unequal length"
    assert all(beam in running.sequences for beam in beams), "a part of the beams is seated"
    inside = [beam in running.decodes.sequences or beam in running.ending for beam in beams]
    assert not any(inside) if is_suspended else all(inside), "a part of the beams decodes"
    assert (request in running.beams) == all(beam in running.decodes.sequences for beam in beams)
    if is_suspended:
        waits = any(beam in running.gathering and not beam.num_computed_tokens for beam in beams)
        assert not waits or request.num_common_blocks and beams[0] in running.prefilling, "a beam waits for nothing"
        assert any(beam in running.prefilling or beam in running.parked for beam in beams), "beams wait for nobody"
