"""KV blocks with a radix tree of cached prefixes, as SGLang has them (`eviction=radix`).

      free ──take──▶ a sequence's own ──checkpoint──▶ in the tree, held ──release──▶ in the tree, held by nobody
        ▲                    │ release                                                        │
        └────────────────────┴──────────────────────── evicted, a leaf at a time ◀────────────┘

What a step computes can be found when its result is there: the prompt when its last chunk has run, what was generated
at the end of the sequence. Then blocks whose content the tree has already are given back, and the sequence goes on with
the blocks of the tree. What a sequence that gives way has generated is not cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.kept_blocks import name_content
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.tiers.tier import Transfer
from engine.core.kv.trees.radix_tree import Node, RadixTree
from engine.core.sequence import FINISHED, Sequence


class RadixPool(Pool):
    """The blocks that are not in use: free ones, and those of the tree that nobody holds."""

    def __init__(self, num_blocks: int, tree: RadixTree) -> None:
        self._num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tree = tree
        self.num_spare = 0  # blocks that are to be free when some are taken

    @property
    def num_free(self) -> int:
        return len(self._free) + self._tree.num_evictable

    @property
    def num_extra_references(self) -> int:
        return self._tree.num_extra_references

    @property
    def num_shared(self) -> int:
        return self._tree.num_shared

    @property
    def num_uncached(self) -> int:
        return len(self._free)

    def evict_for(self, num_blocks: int) -> None:
        """Evict until so many blocks are free, or nothing is left to evict."""
        while len(self._free) < num_blocks and self._tree.num_evictable:
            self._free += self._tree.evict()

    def take(self, count: int) -> list[int]:
        self.evict_for(max(count, self.num_spare))
        split = len(self._free) - count
        assert split >= 0, "more blocks are taken than are free"
        blocks = self._free[split:]
        del self._free[split:]
        return blocks

    def take_each(self, counts: list[int]) -> list[list[int]]:
        return [self.take(count) for count in counts]

    def give_back(self, blocks: list[int]) -> None:
        self._free += reversed(blocks)

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove that each block is free, in the tree or in one table, given how often tables have each; returns the
        hashes of cached ones."""
        cached = {
            block: each for node in self._tree.nodes() for block, each in zip(node.blocks, node.hashes, strict=True)
        }
        own = [block for block in references if block not in cached]
        assert all(references[block] == 1 for block in own), "sequences share a block that the tree has not"
        assert sorted([*self._free, *cached, *own]) == list(range(self._num_blocks)), "a block is lost or held twice"
        return cached

    # What several sequences hold are nodes of the tree, whose blocks are full: nobody writes to them.

    def is_shared(self, block: int) -> bool:
        return False

    def is_queued(self, block: int) -> bool:
        return False

    def count_queued(self, blocks: list[int]) -> int:
        return 0

    def num_references(self, block: int) -> int:
        return 1

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        raise NotImplementedError("asked of the manager")

    def hold(self, blocks: list[int]) -> None:
        raise NotImplementedError("sequences hold nodes")

    def drop_shared(self, blocks: list[int]) -> None:
        raise NotImplementedError("sequences hold nodes")

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int = 0) -> None:
        self._free += reversed(table)


class RadixManager(BlockManager):
    """Blocks of sequences whose prefixes are cached in a radix tree; `num_registered_blocks` of a sequence are those
    that it holds in the tree."""

    finds_late = True
    forks = False

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.tree = RadixTree()
        self.radix_pool = RadixPool(num_blocks, self.tree)
        self._ends: dict[Sequence, Node] = {}  # where the prefix of each that was matched, or runs, ends
        super().__init__(num_blocks, block_size, enable_prefix_caching=enable_prefix_caching, pool=self.radix_pool)
        # SGLang keeps a block free for the next token of a request, and one token.
        self.longest_sequence = max(0, num_blocks * block_size - 2 * block_size)

    def evict_for(self, num_tokens: int) -> None:
        """Evict until there are free blocks for so many tokens, or nothing is left to evict."""
        self.radix_pool.evict_for(self.blocks_for(num_tokens))

    def keep_spare(self, num_blocks: int) -> None:
        """Evict, now and whenever blocks are taken, until so many are free, or nothing is left to evict."""
        self.radix_pool.num_spare = num_blocks
        self.radix_pool.evict_for(num_blocks)

    def pass_steps(self) -> None:
        """Decode steps have passed after the last one that took blocks."""
        self.radix_pool.evict_for(self.radix_pool.num_spare)

    # -- prefix cache ---------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> PrefixMatch:
        blocks = self._match(sequence, sequence.num_tokens - 1)
        return PrefixMatch(blocks, len(blocks) * self.block_size, 0, False) if blocks else NO_MATCH

    def touch(self, sequence: Sequence) -> int:
        """Access the cached prefix of all known tokens of `sequence`; returns how many tokens it has."""
        return len(self._match(sequence, sequence.num_tokens)) * self.block_size

    def end_of(self, sequence: Sequence) -> Node:
        """The node where the prefix of `sequence` ended when it was matched."""
        return self._ends[sequence]

    def num_free_beside(self, sequence: Sequence) -> int:
        """Free blocks if `sequence` held the prefix that was matched."""
        end = self._ends[sequence]
        self.tree.lock(end)
        num_free = self.num_free_blocks
        self.tree.unlock(end)
        return num_free

    def _match(self, sequence: Sequence, num_tokens: int) -> list[int]:
        hashes = self.full_hashes(sequence, num_tokens)
        self._ends[sequence], blocks = self.tree.match(hashes, len(hashes))
        return blocks

    def full_hashes(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """The hashes of the full blocks of the first `num_tokens` tokens, as far as others can have the same."""
        num_full = num_tokens // self.block_size
        can_share = sequence.has_content and sequence.request.reads_prefix_cache
        return self.hashes_of(sequence, num_full)[:num_full] if can_share else []

    def cached_prefix(self, hashes: list[int]) -> tuple[int, int]:
        return self.tree.peek(hashes) if self.enable_prefix_caching else 0, 0

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """What a step is about to compute cannot be found; `checkpoint` comes when it has run."""

    def checkpoint(self, sequence: Sequence, num_tokens: int) -> None:
        """Cache the full blocks of the first `num_tokens` tokens of a sequence that runs, which are computed, and let
        it hold those of the tree."""
        if not self.enable_prefix_caching:
            return
        name_content(self, sequence, num_tokens)
        num_full = num_tokens // self.block_size
        hashes = self.hashes_of(sequence, num_full)[:num_full]
        table, num_held, num_full = sequence.block_table, sequence.num_registered_blocks, len(hashes)
        num_present = self.tree.insert(hashes, table[:num_full])
        num_prompt = sequence.request.num_prompt_tokens // self.block_size
        if 0 < num_prompt < num_full:  # so that the answer can be evicted without the prompt
            self.tree.insert(hashes[:num_prompt], table[:num_prompt])
        end, blocks = self.tree.match(hashes, num_full)
        self.radix_pool.give_back(table[num_held:num_present])
        table[num_held:num_full] = blocks[num_held:]
        sequence.num_registered_blocks = num_full
        self.tree.unlock(self._ends[sequence])
        self._ends[sequence] = end
        self.tree.lock(end)

    # -- blocks of a sequence -------------------------------------------------------------------------------------

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> int:
        return self.blocks_for(num_tokens) - len(match.blocks) + self.num_free_blocks - self.num_free_beside(sequence)

    def admit(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> list[Transfer]:
        self.tree.lock(self._ends[sequence])
        sequence.block_table = list(match.blocks)
        sequence.num_registered_blocks = len(match.blocks)
        self.extend(sequence, num_tokens)
        return []

    def release(self, sequence: Sequence) -> None:
        """Give back what `sequence` holds; what one that has ended has computed stays in the tree."""
        if sequence.block_table:
            if sequence.status is FINISHED:
                self.checkpoint(sequence, sequence.num_tokens - 1)
            self.radix_pool.give_back(sequence.block_table[sequence.num_registered_blocks :])
            self.tree.unlock(self._ends[sequence])
            sequence.block_table = []
            sequence.num_registered_blocks = 0
        self._ends.pop(sequence, None)

    def count_blocks(self, without: Iterable[Sequence]) -> tuple[int, int, int]:
        leaving = list(without)
        num_own = sum(len(each.block_table) - each.num_registered_blocks for each in leaving)
        num_freed, num_unshared = self.tree.num_given_up_by(self._ends[each] for each in leaving)
        num_references = sum(each.num_registered_blocks for each in leaving)
        num_saved = self.tree.num_extra_references - num_references + num_freed
        return self.num_used_blocks() - num_own - num_freed, num_saved, self.tree.num_shared - num_unshared

    def check_integrity(self, sequences: list[Sequence]) -> None:
        running = [each for each in sequences if each.block_table]
        self.tree.check_integrity(self._ends[each] for each in running)
        hash_of = self.pool.check_integrity(Counter(block for each in running for block in each.block_table))
        for sequence in running:
            num_held, table = sequence.num_registered_blocks, sequence.block_table
            hashes = (sequence.block_hashes or [])[:num_held]
            assert [hash_of[block] for block in table[:num_held]] == hashes, "a table has other blocks than its hashes"
            assert hash_of.keys().isdisjoint(table[num_held:]), "a block of a sequence's own is in the tree"
