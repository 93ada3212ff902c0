"""SGLang's running batch: who decodes, who joins after a step with prompts, and whether it is known to be full."""

from __future__ import annotations

from engine.core.kv.trees.radix import RadixManager
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


class RunningBatch:
    """Follows the loop of SGLang.

    Attributes:
        sequences: those that decode, in SGLang's order.
        joining: who was in the last step, if that had prompts.
        chunked: the prompt that is cut.
        is_full: it is known that nobody can enter.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.joining: list[Sequence] | None = None
        self.chunked: Sequence | None = None
        self.is_full = False

    def follow(self, running: RunningSet, blocks: RadixManager) -> None:
        """Take note of what the last step brought."""
        if self.chunked is not None and self.chunked in running.prefilling:
            blocks.checkpoint(self.chunked, self.chunked.num_computed_tokens)
        else:
            self.chunked = None
        if self.joining is not None:
            batch = [each for each in self.joining if each in running.sequences and each is not self.chunked]
            self.is_full &= bool(self.sequences) and len(batch) == len(self.joining)
            self.sequences += batch
            self.joining = None
        self.keep([each for each in self.sequences if each in running.sequences])
        self.is_full &= bool(self.sequences)

    def keep(self, batch: list[Sequence]) -> None:
        """Go on with those that are left; if these are fewer, somebody may fit."""
        self.is_full &= len(batch) == len(self.sequences)
        self.sequences = batch

    def join_step(self) -> None:
        """All that decode take part in the step with prompts, and come after these from then on."""
        assert self.joining is not None
        self.joining += self.sequences
        renumber(self.joining)
        self.sequences = []


def num_output_tokens(running: RunningSet, sequence: Sequence) -> int:
    """Tokens that `sequence` has generated, without one that is under way."""
    is_coming = False
    if running.flights:
        flight = running.flights[-1]
        is_coming = flight.plan.num_decodes > 0 or sequence in flight.started or sequence in running.ending
    return sequence.num_output_tokens - is_coming


def renumber(batch: list[Sequence]) -> None:
    """Let the order of admission, in which sequences that end in one step give back their blocks, be that of the
    batch."""
    for sequence, number in zip(batch, sorted(each.admission for each in batch), strict=True):
        sequence.admission = number
