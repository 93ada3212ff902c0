"""KV blocks as TensorRT-LLM has them (`eviction=stored`): what is computed can be found when it has been stored.

      free ──take──▶ a sequence's own ──checkpoint──▶ held, stored ──release──▶ free, stored, until it is taken
        ▲                    │ release                                                        │
        └────────────────────┴──────────────────── whichever was freed first ◀────────────────┘

The prompt is stored when its last chunk has run, what was generated when the sequence ends or gives way. Of blocks with
equal content one is stored. Blocks are taken in the order in which they were freed, of a sequence the last one first;
what is stored behind one that is taken cannot be found any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.sequence import Sequence


class StoredPool(Pool):
    """Blocks, and a queue of the free ones; `forget` is called with each that is taken."""

    def __init__(self, num_blocks: int, forget: Callable[[int], None]) -> None:
        self._references = [0] * num_blocks
        self._queue = dict.fromkeys(range(num_blocks))
        self._forget = forget
        self._num_extra = 0
        self._num_shared = 0

    @property
    def num_uncached(self) -> int:
        return 0

    @property
    def num_extra_references(self) -> int:
        return self._num_extra

    @property
    def num_shared(self) -> int:
        return self._num_shared

    @property
    def num_free(self) -> int:
        return len(self._queue)

    def take(self, count: int) -> list[int]:
        queue = iter(self._queue)
        blocks = [next(queue) for _ in range(count)]
        for block in blocks:
            del self._queue[block]
            self._references[block] = 1
            self._forget(block)
        return blocks

    def take_each(self, counts: list[int]) -> list[list[int]]:
        return [self.take(count) for count in counts]

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._references[block]:
                self._num_extra += 1
                self._num_shared += self._references[block] == 1
            else:
                del self._queue[block]
            self._references[block] += 1

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int = 0) -> None:
        for block in reversed(table):
            self._references[block] -= 1
            if self._references[block]:
                self._num_extra -= 1
                self._num_shared -= self._references[block] == 1
            else:
                self._queue[block] = None

    def count_queued(self, blocks: list[int]) -> int:
        return sum([not self._references[block] for block in blocks])

    def is_queued(self, block: int) -> bool:
        return not self._references[block]

    def is_shared(self, block: int) -> bool:
        return self._references[block] > 1

    def num_references(self, block: int) -> int:
        return self._references[block]

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        if not self._num_extra:
            return sum(map(len, tables)), 0
        counts, references = Counter(block for table in tables for block in table), self._references
        num_freed = sum([references[block] == count for block, count in counts.items()])
        return num_freed, sum([references[block] - count <= 1 < references[block] for block, count in counts.items()])

    def give_back(self, blocks: list[int]) -> None:
        raise NotImplementedError("nobody sets blocks aside")

    def drop_shared(self, blocks: list[int]) -> None:
        raise NotImplementedError("nobody writes to a block that is shared")

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove that references are counted, and that what nobody holds is free."""
        counted = {block: count for block, count in enumerate(self._references) if count}
        assert counted == references, "references are miscounted"
        assert self._queue.keys() == set(range(len(self._references))) - counted.keys(), "a block is lost or held twice"
        assert self._num_extra == sum(counted.values()) - len(counted)
        assert self._num_shared == sum(count > 1 for count in counted.values())
        return {}


class StoredManager(BlockManager):
    """Blocks of sequences, and a tree of those that are stored, by their hashes; `num_registered_blocks` of a sequence
    are those whose content is stored, be it in its own blocks or in others'."""

    finds_late = True
    stores_prompts_first = True
    forks = False

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self._block_of: dict[int, int] = {}  # of each stored hash
        self._hash_of: dict[int, int] = {}  # of each stored block
        self._before: dict[int, int] = {}  # the hash that each follows, if any
        self._after: dict[int, dict[int, None]] = {}  # the hashes that follow each
        pool = StoredPool(num_blocks, self._forget)
        super().__init__(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching, pool=pool)

    def match(self, sequence: Sequence) -> PrefixMatch:
        blocks = self._find(self._shared_hashes(sequence, sequence.num_tokens - 1))
        if not blocks:
            return NO_MATCH
        return PrefixMatch(blocks, len(blocks) * self.block_size, self.pool.count_queued(blocks), False)

    def cached_prefix(self, hashes: list[int]) -> tuple[int, int]:
        return len(self._find(hashes)) if self.enable_prefix_caching else 0, 0

    def first_missing(self, sequence: Sequence) -> int | None:
        """The hash of the first full block of the known tokens that is not stored; None if there is none that others
        could share."""
        hashes = self._shared_hashes(sequence, sequence.num_tokens)
        return next((each for each in hashes if each not in self._block_of), None)

    def announce(self, sequence: Sequence, num_tokens: int) -> None:
        """What a step is about to compute cannot be found."""

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Store the full blocks of the first `num_tokens` tokens, which are computed."""
        num_full = num_tokens // self.block_size
        hashes = self.hashes_of(sequence, num_full)[:num_full]
        before: int | None = None
        for each, block in zip(hashes, sequence.block_table, strict=False):
            if each not in self._block_of:
                self._block_of[each], self._hash_of[block] = block, each
                if before is not None:
                    self._before[each] = before
                    self._after.setdefault(before, {})[each] = None
            before = each
        sequence.num_registered_blocks = len(hashes)

    def num_held_by_others(self, match: PrefixMatch) -> int:
        """Of the blocks of a match, how many are not free."""
        return len(match.blocks) - match.num_revived

    def _shared_hashes(self, sequence: Sequence, num_tokens: int) -> list[int]:
        if not (sequence.has_content and sequence.request.reads_prefix_cache):
            return []
        num_full = num_tokens // self.block_size
        return self.hashes_of(sequence, num_full)[:num_full]

    def _find(self, hashes: list[int]) -> list[int]:
        blocks = []
        for each in hashes:
            if (block := self._block_of.get(each)) is None:
                break
            blocks.append(block)
        return blocks

    def _forget(self, block: int) -> None:
        """A block is taken: neither its content nor what follows it can be found."""
        if block not in self._hash_of:
            return
        first = self._hash_of[block]
        if (before := self._before.get(first)) is not None:
            del self._after[before][first]
        hashes = [first]
        while hashes:
            each = hashes.pop()
            del self._hash_of[self._block_of.pop(each)]
            self._before.pop(each, None)
            hashes += self._after.pop(each, ())

    def check_integrity(self, sequences: list[Sequence]) -> None:
        self.pool.check_integrity(Counter(block for each in sequences for block in each.block_table))
        assert {block: each for each, block in self._block_of.items()} == self._hash_of
        assert self._before == {each: before for before, after in self._after.items() for each in after}
        assert self._block_of.keys() >= self._before.keys() | self._after.keys(), "what was stored before is gone"
        for sequence in sequences:
            hashes = (sequence.block_hashes or [])[: len(sequence.block_table)]
            for each, block in zip(hashes, sequence.block_table, strict=False):
                assert self._hash_of.get(block, each) == each, "a table has a block with other content"
