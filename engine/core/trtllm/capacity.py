"""Who fits into the memory, as TensorRT-LLM's capacity scheduler decides it.

It looks at all requests that have or could have a seat, in order of arrival. A request whose first block that is not
stored is one that another prompt is about to compute waits until it can share that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from engine.core.kv.prefix_match import PrefixMatch
from engine.core.kv.trees.stored import StoredManager
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence

_ORDER = attrgetter("request.order")


@dataclass
class Fitting:
    """Who may take part in a step.

    Attributes:
        sequences: decodes and prompts, in the order in which they get tokens.
        num_cached: of those that are not admitted yet, their tokens that are stored.
        victims: who gives way, in order.
        may_change: others may fit into the next step though nothing is released.
    """

    sequences: list[Sequence] = field(default_factory=list)
    num_cached: dict[Sequence, int] = field(default_factory=dict)
    victims: list[Sequence] = field(default_factory=list)
    may_change: bool = False


class Capacity:
    """Looks at the sequences of one lane when a step is planned."""

    def __init__(self, planner: StepPlanner, blocks: StoredManager) -> None:
        self._blocks = blocks
        self._running = planner.running
        self._waiting = planner.waiting
        self._num_seats = planner.limits.max_num_seqs
        self._coming: set[int | None] = set()  # blocks that prompts are about to compute
        self._matches: dict[Sequence, PrefixMatch] = {}  # of newcomers
        self._fitting = Fitting()

    def fit_to_the_end(self, *, is_static: bool) -> Fitting:
        """GUARANTEED_NO_EVICT: who runs keeps room for all that it may generate, so nobody ever gives way. With
        `is_static`, STATIC_BATCH, prompts are computed only while nobody decodes."""
        running, fitting = self._running, self._fitting
        fitting.sequences = [each for each in running.sequences if each not in running.prefilling]
        num_seats = self._num_seats - len(fitting.sequences)
        if is_static and fitting.sequences:
            fitting.sequences = [each for each in fitting.sequences if each not in running.ending]
            return fitting
        newcomers = self._newcomers()
        if newcomers or running.prefilling:
            num_free = self._blocks.num_free_blocks - sum(map(self._left_to_the_end, fitting.sequences))
            for sequence in sorted([*running.prefilling, *newcomers], key=_ORDER):
                if self._waits_for_another(sequence, is_static=is_static):
                    continue
                num_blocks = self._left_to_the_end(sequence)
                if num_blocks > num_free or num_seats <= 0:
                    break
                num_free -= num_blocks
                num_seats -= 1
                fitting.sequences.append(sequence)
        if not fitting.sequences:  # one that waited came before a prompt that is cut: TensorRT-LLM hangs then
            fitting.sequences = [*running.prefilling]
        fitting.sequences = [each for each in fitting.sequences if each not in running.ending]
        return fitting

    def fit_the_step(self) -> Fitting:
        """MAX_UTILIZATION: who has blocks for the next step takes part. For one that has not, those give way that came
        last; if none of these is left, neither it nor anybody after it takes part."""
        running, fitting = self._running, self._fitting
        newcomers = self._newcomers()
        sequences = sorted([*running.sequences, *newcomers], key=_ORDER)
        num_free, num_blocks, num_seats = self._blocks.num_free_blocks, 0, self._num_seats
        start, end = 0, len(sequences)
        while start < end:
            sequence = sequences[start]
            if self._waits_for_another(sequence, is_static=False):
                start += 1
                continue
            needed = self._needed_now(sequence)
            if num_seats > 0 and num_blocks + needed <= num_free:
                num_blocks, num_seats, start = num_blocks + needed, num_seats - 1, start + 1
                if sequence not in running.ending:
                    fitting.sequences.append(sequence)
                continue
            last = next((i for i in range(end - 1, start - 1, -1) if self._may_give_way(sequences[i])), None)
            if last is None:
                break
            fitting.victims.append(sequences[last])
            num_free = self._blocks.num_blocks - self._blocks.count_blocks(fitting.victims)[0]
            end = last
        return fitting

    def _newcomers(self) -> list[Sequence]:
        """Those in the queue who could have a seat; one whose last token is under way is not looked at."""
        waiting = self._waiting
        num_seats = self._num_seats - len(self._running.sequences)
        if not waiting or num_seats <= 0:
            return []
        # Prompts whose last chunk is under way are stored when that has run.
        self._fitting.may_change = any(flight.started for flight in self._running.flights)
        self._coming = {self._blocks.first_missing(each) for each in self._running.prefilling}
        first = waiting.first(num_seats)
        if not waiting.coming:
            return first
        self._fitting.may_change |= any(each in waiting.coming for each in first)
        return [each for each in first if each not in waiting.coming]

    def _waits_for_another(self, sequence: Sequence, *, is_static: bool) -> bool:
        """Whether a newcomer had better wait for a block that is coming; if not, its own blocks are coming from now
        on."""
        if sequence in self._running.sequences:
            return False
        match = self._matches[sequence] = self._blocks.match(sequence)
        self._fitting.num_cached[sequence] = match.num_cached_tokens
        missing = None if is_static else self._blocks.first_missing(sequence)
        if missing is None:
            return False
        if missing in self._coming:
            return True
        self._coming.add(missing)
        return False

    def _left_to_the_end(self, sequence: Sequence) -> int:
        """Blocks that it must get until it has generated all that it may."""
        num_blocks = self._blocks.blocks_for(sequence.end_length) - len(sequence.block_table)
        return num_blocks - self._num_shared(sequence)

    def _needed_now(self, sequence: Sequence) -> int:
        """Blocks that it must get to take part in the next step; all of a prompt at its admission."""
        num_blocks = self._blocks.blocks_for(sequence.num_tokens) - len(sequence.block_table)
        return num_blocks - self._num_shared(sequence)

    def _num_shared(self, sequence: Sequence) -> int:
        """Of the stored blocks of a newcomer, those that others hold."""
        match = self._matches.get(sequence)
        return 0 if match is None else self._blocks.num_held_by_others(match)

    def _may_give_way(self, sequence: Sequence) -> bool:
        running = self._running
        return sequence in running.sequences and sequence not in running.ending and sequence not in running.parked
