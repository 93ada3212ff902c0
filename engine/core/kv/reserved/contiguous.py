"""Contiguous reservations: the allocators before paging, which paging is measured against.

A sequence gets the blocks of all tokens that it may ever hold when it is admitted, as one range of consecutive blocks:

    | A: prompt, output so far, reserved ........ | hole | B: prompt, output so far, reserved .. | hole

Nobody needs a block after that, so nobody is preempted for one; but a sequence waits until a hole is large enough for
its whole reservation. A block of one token gives reservations to the token. What `reserve` says decides how much:
Yu et al. 2022 (Orca) and Kwon et al. 2023 (PagedAttention, section 6.1) compare "max_model_len" (Orca Max), "pow2" and
"exact" (Orca Oracle); the last two know what a request will generate, which only a simulation can.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, abc

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.reserved.reservation import Contiguous, Fit
from engine.core.kv.tiers.tier import Transfer
from engine.core.sequence import Sequence


class RangePool(Pool):
    """`num_blocks` blocks, taken and released as ranges of consecutive blocks.

    Attributes:
        largest: blocks of the largest hole.
    """

    def __init__(self, num_blocks: int, fit: Fit) -> None:
        self._num_free = num_blocks
        self.largest = num_blocks
        self._num_blocks = num_blocks
        self._is_best = fit == "best"
        self._starts = [0]  # of the holes, ascending; no two of them touch
        self._sizes = [num_blocks]

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_extra_references(self) -> int:
        return 0  # no block is shared

    @property
    def num_shared(self) -> int:
        return 0

    @property
    def num_uncached(self) -> int:
        return self._num_free

    def take_each(self, counts: list[int]) -> list[list[int]]:
        return [self.take(count) for count in counts]

    def take(self, count: int) -> list[int]:
        """Take `count` consecutive blocks, for which there must be a hole."""
        if not count:
            return []
        sizes = self._sizes
        if self._is_best:
            size = min(size for size in sizes if size >= count)
            hole = sizes.index(size)
        else:
            hole = next(i for i, size in enumerate(sizes) if size >= count)
        start = self._starts[hole]
        if sizes[hole] == count:
            del self._starts[hole], sizes[hole]
        else:
            self._starts[hole] += count
            sizes[hole] -= count
        self._num_free -= count
        self.largest = max(sizes, default=0)
        return list(range(start, start + count))

    def give_back(self, blocks: list[int]) -> None:
        self.release(blocks, None, 0)

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int = 0) -> None:
        """Free the range `table`, which joins the holes beside it; no block has a hash."""
        start, size = table[0], len(table)
        starts, sizes = self._starts, self._sizes
        self._num_free += size
        hole = bisect_left(starts, start)
        if hole < len(starts) and starts[hole] == start + size:
            size += sizes[hole]
            del starts[hole], sizes[hole]
        if hole and starts[hole - 1] + sizes[hole - 1] == start:
            hole -= 1
            sizes[hole] += size
        else:
            starts.insert(hole, start)
            sizes.insert(hole, size)
        if sizes[hole] > self.largest:
            self.largest = sizes[hole]

    def hold(self, blocks: list[int]) -> None:
        raise AssertionError("a reservation is not shared")

    def drop_shared(self, blocks: list[int]) -> None:
        raise AssertionError("a reservation is not shared")

    def is_queued(self, block: int) -> bool:
        return False

    def count_queued(self, blocks: list[int]) -> int:
        return 0

    def is_shared(self, block: int) -> bool:
        return False

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        return sum(map(len, tables)), 0

    def num_references(self, block: int) -> int:
        return 1

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove that holes and held blocks make up the pool, and that holes that touch are one."""
        holes = list(zip(self._starts, self._sizes, strict=True))
        free = [block for start, size in holes for block in range(start, start + size)]
        assert sorted([*free, *references.elements()]) == list(range(self._num_blocks)), "a block is lost or held twice"
        assert all(size > 0 for size in self._sizes), "an empty hole is kept"
        ends = [start + size for start, size in holes]
        assert all(end < start for end, start in zip(ends, self._starts[1:], strict=False)), "two holes are one"
        assert self._num_free == len(free) and self.largest == max(self._sizes, default=0), "holes are miscounted"
        return {}


class ContiguousManager(BlockManager):
    """Hands out contiguous reservations; the sequences of it need no blocks but those of their admission.

    Args:
        longest: tokens that no sequence can exceed; the pool is a bound too.
        num_drafts: drafts that a step verifies, beyond the end of a sequence too; a reservation has room for them.
    """

    forks = False

    def __init__(
        self, num_blocks: int, block_size: int, rule: Contiguous, longest: int | None = None, num_drafts: int = 0
    ) -> None:
        pool = RangePool(num_blocks, rule.fit)
        super().__init__(num_blocks, block_size, enable_prefix_caching=False, pool=pool)
        self._ranges = pool
        self._rule = rule
        self._longest = min(longest or num_blocks * block_size, num_blocks * block_size)
        self._num_drafts = num_drafts
        self._num_promised_tokens = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that one sequence can get."""
        return self._ranges.largest

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> int:
        drafted = min(self._longest, sequence.end_length - 1 + self._num_drafts)
        return self.blocks_for(max(self._rule.num_tokens(sequence, self._longest), drafted))

    def admit(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> list[Transfer]:
        sequence.block_table = self.take(self.blocks_needed(sequence, match, num_tokens))
        self._num_promised_tokens += sequence.end_length - 1
        return []

    def release(self, sequence: Sequence) -> None:
        if sequence.block_table:
            super().release(sequence)
            self._num_promised_tokens -= sequence.end_length - 1

    def most_tokens(self, sequence: Sequence) -> int:
        """Tokens that the reservation of a sequence is for."""
        return self._rule.num_tokens(sequence, self._longest)

    def note_row(self, sequence: Sequence, row: Sequence) -> None:
        """A row of padding has taken over the reservation of `sequence`."""
        self._num_promised_tokens += row.end_length - sequence.end_length

    def num_promised_tokens(self, without: abc.Iterable[Sequence] = ()) -> int:
        """Tokens whose KV those that hold reservations, other than `without`, will have written in the end."""
        return self._num_promised_tokens - sum(sequence.end_length - 1 for sequence in without)

    def num_unusable_slots(self, head: Sequence) -> int:
        """Slots of all holes while none is large enough for the head of the queue; else 0."""
        if self.blocks_needed(head, NO_MATCH, 0) <= self._ranges.largest:
            return 0
        return self._ranges.num_free * self.block_size

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Prove the invariants of the ranges as well; arguments and errors as those of `check_blocks`."""
        super().check_integrity(sequences)
        sequences = [sequence for sequence in sequences if sequence.block_table]
        for sequence in sequences:
            table = sequence.block_table
            assert table == list(range(table[0], table[0] + len(table))), "a reservation has a gap"
            assert len(table) == self.blocks_needed(sequence, NO_MATCH, 0), "a reservation has another size"
        assert self._num_promised_tokens == sum(s.end_length - 1 for s in sequences), "promised tokens are miscounted"
