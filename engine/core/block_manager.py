"""The pool of KV blocks: who holds each block, and which of them the prefix cache can find again.

Where a block is at any time:

      free, unhashed ──take──▶ held by 1..n sequences ──register──▶ held, hashed
            ▲                        │ release                         │ release
            └────────────────────────┘                                 ▼
            └──────────── take (oldest first, hash dropped) ◀── free, hashed (LRU)

A hashed block that is free keeps its content until it is taken, and a hit brings it back. Unhashed blocks are taken
first; hashed ones least recently used first, a sequence's tail before its head, so that a cached block never
outlives the prefix it stands on. With `eviction="lru"` there is one queue of free blocks, hashed or not, and whichever
was freed first is taken first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from engine.core.sequence import Sequence, token_bytes


class PrefixMatch(NamedTuple):
    """What the prefix cache holds of a waiting sequence.

    Attributes:
        blocks: the cached leading blocks.
        num_cached_tokens: tokens that need no computing, at most all known tokens but one.
        num_revived: how many of `blocks` are free now and leave the free pool when they are used.
        copy_last: the last of `blocks` is held by another sequence and must be copied before the one token that is
            left to compute is written into it.
    """

    blocks: list[int]
    num_cached_tokens: int
    num_revived: int
    copy_last: bool


class BlockCopy(NamedTuple):
    """Copy all KV of block `source` to block `destination` before the step writes anything."""

    source: int
    destination: int


Eviction = Literal["unhashed_first", "lru"]
FullHit = Literal["copy", "recompute_block"]

_LOOKUP_STRIDE = 64  # hashes looked up at once: most prompts miss early
NO_MATCH = PrefixMatch([], 0, 0, False)


class BlockManager:
    """A fixed pool of `num_blocks` KV blocks of `block_size` tokens each.

    Args:
        eviction: which free blocks are taken first: "unhashed_first" spares the prefix cache, "lru" takes whichever was
            freed first.
        full_hit: what a prompt that is cached to its last token, of which one token must be computed, does: "copy"
            computes that token, in a copy of its block if another sequence holds it; "recompute_block" computes the
            whole last block.

    Raises:
        ValueError: if `num_blocks` or `block_size` is below 1.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        eviction: Eviction = "unhashed_first",
        full_hit: FullHit = "copy",
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks} and block_size={block_size} must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._recomputes_last_block = full_hit == "recompute_block"
        self._has_one_queue = eviction == "lru"
        self._free = [] if self._has_one_queue else list(range(num_blocks - 1, -1, -1))  # unhashed ones, the last first
        self._lru = OrderedDict.fromkeys(range(num_blocks) if self._has_one_queue else ())  # all other free ones
        self._shared: dict[int, int] = {}  # references beyond the first
        self._hash: list[int | None] = [None] * num_blocks
        self._index: dict[int, int] = {}
        self._duplicates: dict[int, list[int]] = {}  # more blocks of the same content as the indexed one
        self._content: dict[int, tuple[int | None, bytes]] = {}  # parent hash and tokens, where tokens are known
        self._pending: set[int] = set()  # registered, but only computed by the step being planned

    @property
    def num_free_blocks(self) -> int:
        return len(self._free) + len(self._lru)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that some sequence references."""
        return self.num_blocks - len(self._free) - len(self._lru)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- prefix cache ---------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest cached prefix of the known tokens of a sequence that holds no blocks."""
        num_tokens = sequence.num_tokens
        num_full = (num_tokens - self._recomputes_last_block) // self.block_size
        hashes = self._hashes(sequence, num_full)
        if not hashes or hashes[0] not in self._index:
            return NO_MATCH
        blocks = self._lookup(sequence, hashes[:num_full])
        num_cached_tokens = len(blocks) * self.block_size
        copy_last = False
        if blocks and num_cached_tokens == num_tokens:
            # One token must be computed. Its block can be copied only when its content is there before the step.
            if blocks[-1] in self._pending:
                blocks.pop()
                num_cached_tokens -= self.block_size
            else:
                copy_last = blocks[-1] not in self._lru
                num_cached_tokens -= 1
        num_revived = sum(map(self._lru.__contains__, blocks))
        return PrefixMatch(blocks, num_cached_tokens, num_revived, copy_last)

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Let the prefix cache find the full blocks among the first `num_tokens` tokens of `sequence`.

        Their content must be computed by now or by the step being planned.
        """
        num_full = num_tokens // self.block_size
        start = sequence.num_registered_blocks
        if num_full <= start:
            return
        hashes = self._hashes(sequence, num_full)[start:num_full]
        blocks = sequence.block_table[start : start + len(hashes)]
        hash_of, find_or_add = self._hash, self._index.setdefault
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
            if find_or_add(block_hash, block) != block:
                self._duplicates.setdefault(block_hash, []).append(block)
        self._pending.update(blocks)
        sequence.num_registered_blocks = start + len(blocks)
        if sequence.token_ids is not None:
            for i in range(start, start + len(blocks)):
                self._content[sequence.block_table[i]] = self._block_content(sequence, i)

    def name_content(self, sequence: Sequence, num_tokens: int) -> None:
        """Before a sequence gives up blocks of unknown content, name those of its first `num_tokens` tokens, which are
        computed, so that it can find them again."""
        if sequence.token_ids is not None or not self.enable_prefix_caching:
            return
        hashes = sequence.block_hashes = list(sequence.block_hashes or ())
        own = -1 - (sequence.order << 32)  # below zero, where nobody else's identities are
        hashes.extend(range(own - len(hashes), own - num_tokens // self.block_size, -1))
        self.register(sequence, num_tokens)

    def settle(self) -> None:
        """The step has run: the content of every registered block is there."""
        self._pending.clear()

    def _hashes(self, sequence: Sequence, num_full: int) -> list[int]:
        """The hashes of at most the first `num_full` blocks and possibly more; none where nothing can be shared."""
        if not self.enable_prefix_caching:
            return []
        if sequence.token_ids is not None:
            sequence.hash_blocks(self.block_size, num_full)
        return sequence.block_hashes or []

    def _block_content(self, sequence: Sequence, i: int) -> tuple[int | None, bytes]:
        assert sequence.token_ids is not None and sequence.block_hashes is not None
        parent = sequence.block_hashes[i - 1] if i else None
        return parent, token_bytes(sequence.token_ids[i * self.block_size : (i + 1) * self.block_size])

    def _lookup(self, sequence: Sequence, hashes: list[int]) -> list[int]:
        blocks: list[int] = []
        for start in range(0, len(hashes), _LOOKUP_STRIDE):
            found = list(map(self._index.get, hashes[start : start + _LOOKUP_STRIDE]))
            if None in found:
                blocks += found[: found.index(None)]  # type: ignore[arg-type]
                break
            blocks += found  # type: ignore[arg-type]
        if sequence.token_ids is None:
            return blocks
        for i, block in enumerate(blocks):  # a hash can collide: tokens and parent must be equal too
            if self._content.get(block) != self._block_content(sequence, i):
                return blocks[:i]
        return blocks

    # -- blocks of a sequence -------------------------------------------------------------------------------------

    def blocks_needed(self, match: PrefixMatch, num_tokens: int) -> int:
        """Free blocks that `admit` would use up for a sequence of `num_tokens` tokens."""
        return self.blocks_for(num_tokens) - len(match.blocks) + match.num_revived + match.copy_last

    def admit(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> BlockCopy | None:
        """Give `sequence` the matched blocks and new ones for up to `num_tokens` tokens; may ask for a copy."""
        lru, shared = self._lru, self._shared
        for block in match.blocks:
            if block in lru:
                del lru[block]
            else:
                shared[block] = shared.get(block, 0) + 1
        table = sequence.block_table = match.blocks.copy()
        copy = None
        if match.copy_last:
            source = table.pop()
            self._drop_reference(source)
            table.extend(self.take(1))
            copy = BlockCopy(source, table[-1])
        sequence.num_registered_blocks = len(match.blocks) - match.copy_last
        table.extend(self.take(self.blocks_for(num_tokens) - len(table)))
        return copy

    def take(self, count: int) -> list[int]:
        """Take `count` blocks out of the free pool, which must hold that many.

        They come in ascending order, as far as they lie together: a CPU reads them faster that way.
        """
        free = self._free
        split = max(0, len(free) - count)
        blocks = free[split:]
        blocks.reverse()
        del free[split:]
        if len(blocks) == count:
            return blocks
        pop_oldest, hashes, index, duplicates = self._lru.popitem, self._hash, self._index, self._duplicates
        for _ in range(count - len(blocks)):
            block, _ = pop_oldest(last=False)
            block_hash = hashes[block]
            blocks.append(block)
            if block_hash is None:
                continue
            hashes[block] = None  # its content is about to be overwritten
            if block_hash in duplicates:
                self._forget_duplicate(block, block_hash)
            else:
                del index[block_hash]
        for block in blocks if self._content else ():
            self._content.pop(block, None)
        blocks.sort()
        return blocks

    def release(self, sequence: Sequence) -> None:
        """Drop the references of `sequence`, tail first; hashed blocks that become free stay findable."""
        table = sequence.block_table
        num_registered = sequence.num_registered_blocks
        # Blocks after the registered ones were never findable, so nobody else can hold them.
        private = reversed(table[num_registered:])
        if self._has_one_queue:
            self._lru.update(dict.fromkeys(private))
        else:
            self._free.extend(private)
        findable = table[:num_registered]
        shared = self._shared.keys() & findable
        if shared:
            for block in shared:
                self._drop_reference(block)
            findable = [block for block in findable if block not in shared]
        self._lru.update(dict.fromkeys(reversed(findable)))
        sequence.block_table = []
        sequence.num_registered_blocks = 0

    def _drop_reference(self, block: int) -> None:
        """Give up one of at least two references."""
        if self._shared[block] == 1:
            del self._shared[block]
        else:
            self._shared[block] -= 1

    def _forget_duplicate(self, block: int, block_hash: int) -> None:
        """Take `block` out of the index, where another block of the same content takes its place."""
        duplicates = self._duplicates[block_hash]
        if self._index[block_hash] == block:
            self._index[block_hash] = duplicates.pop(0)
        else:
            duplicates.remove(block)
        if not duplicates:
            del self._duplicates[block_hash]

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Prove the invariants, given all sequences that hold blocks.

        Raises:
            AssertionError: a block is lost, held twice without a count, free while referenced, or wrongly indexed.
        """
        sequences = list(sequences)
        references = Counter(block for sequence in sequences for block in sequence.block_table)
        free = Counter([*self._free, *self._lru])
        assert all(count == 1 for count in free.values()), "a block is free twice"
        assert not free.keys() & references.keys(), "a block is free and referenced"
        assert free.keys() | references.keys() == set(range(self.num_blocks)), "a block is lost"
        assert {b: n - 1 for b, n in references.items() if n > 1} == self._shared, "reference counts are off"
        assert all(len(set(s.block_table)) == len(s.block_table) for s in sequences), "a block twice in one table"

        hashed = {block for block, block_hash in enumerate(self._hash) if block_hash is not None}
        assert not hashed & set(self._free), "a hashed block would be taken before its turn"
        assert self._has_one_queue or self._lru.keys() <= hashed, "an unhashed block is kept as cached"
        found = list(self._index.values()) + [b for blocks in self._duplicates.values() for b in blocks]
        assert sorted(found) == sorted(hashed), "index and hashes disagree"
        assert all(self._hash[block] == block_hash for block_hash, block in self._index.items())
        assert all(self._hash[b] == h for h, blocks in self._duplicates.items() for b in blocks)
        assert self._content.keys() <= hashed, "content is kept of a block without a hash"
        assert all(len(tokens) == 4 * self.block_size for _, tokens in self._content.values()), (
            "a cut block is findable"
        )
        for sequence in sequences:
            n = sequence.num_registered_blocks
            hashes = [self._hash[block] for block in sequence.block_table]
            assert hashes[:n] == (sequence.block_hashes or [])[:n], "a sequence holds a block of other content"
            assert all(block_hash is None for block_hash in hashes[n:]), "a private block is findable"
