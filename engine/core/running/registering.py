"""What is known of decoding sequences, and when the prefix cache is told of the blocks that they fill."""

from __future__ import annotations

from engine.core.flight import NOBODY, Stopped
from engine.core.kv.block_manager import BlockManager
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


def num_known(running: RunningSet, sequence: Sequence) -> int:
    """With a connector: tokens of a running sequence without those that the plan under way brings to a decode."""
    if not running.is_under_way(sequence):
        return sequence.num_tokens
    if sequence in running.decodes.sequences or sequence in running.ending:
        return running.decodes.num_found(sequence)
    return running.paused.get(sequence, sequence.num_tokens)


def register_filled(running: RunningSet, blocks: BlockManager, ahead: int, stopped: Stopped = NOBODY) -> None:
    """Register the blocks of decodes that are known to be full `ahead` steps after the next one is planned."""
    for sequence, num_tokens in filled(running, ahead):
        if sequence not in stopped:
            blocks.announce(sequence, num_tokens)


def filled(running: RunningSet, ahead: int) -> list[tuple[Sequence, int]]:
    """Decodes that may have filled a block by then, and how many known tokens they have.

    A sequence that sat out the plan under way, or the last one, waits for no token: all its tokens are known.
    """
    decodes, lag = running.decodes, running.lag
    full = [*decodes.filling(ahead - lag)]
    if decodes.fresh and lag and (ahead < lag or not running.flights):
        started = running.flights[-1].started if running.flights else ()
        full += [(s, s.num_tokens) for s in decodes.fresh if s in decodes.findable and s not in started]
    return full


def register_known(running: RunningSet, blocks: BlockManager, sequence: Sequence) -> None:
    """Register what a decoding sequence has computed, which is known when it has its place in the step."""
    if sequence in running.decodes.findable:
        blocks.register(sequence, running.decodes.num_found(sequence) if running.lag else sequence.num_tokens - 1)


def register_verified(running: RunningSet, blocks: BlockManager, ended: list[Sequence]) -> None:
    """Register all but the last token of those who got tokens with the step that has run, of which some `ended`, in
    order of admission: of equal blocks the first one is found."""
    known = [(sequence, num_tokens - 1) for sequence, num_tokens in running.decodes.filling(0)]
    known += [(sequence, sequence.num_tokens - 1) for sequence in ended if sequence.has_content]
    for sequence, num_tokens in sorted(known, key=lambda each: each[0].admission):
        blocks.register(sequence, num_tokens)
