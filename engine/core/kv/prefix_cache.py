"""The prefix cache of the device: which leading blocks of a sequence are there already, and those that it adds."""

from __future__ import annotations

from collections import abc

from engine.core.block_hashes import BlockHashes
from engine.core.hashing import token_bytes
from engine.core.kv.eviction import RankedPool
from engine.core.kv.offload import Offload
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_index import Content, PrefixIndex
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch, make_match
from engine.core.sequence import Sequence


class PrefixCache:
    """Finds the full blocks of sequences in an index, by their hashes and, where tokens are known, by these.

    Args:
        pool: the blocks.
        index: of those that can be found.
        offload: as of `BlockManager`.
        is_enabled: if not, nothing is found or added.
        recomputes_last_block: of a prompt that is cached to its last token.
    """

    def __init__(
        self,
        pool: Pool,
        index: PrefixIndex,
        offload: Offload | None,
        block_size: int,
        *,
        is_enabled: bool,
        recomputes_last_block: bool,
    ) -> None:
        self._pool = pool
        self._ranked = pool if isinstance(pool, RankedPool) else None
        self._index = index
        self._offload = offload
        self._block_size = block_size
        self._is_enabled = is_enabled
        self._recomputes_last_block = recomputes_last_block

    def match(self, sequence: Sequence) -> PrefixMatch:
        """As `BlockManager.match`."""
        num_kept = len(sequence.block_table)
        nothing = PrefixMatch([], num_kept * self._block_size, 0, False, num_kept) if num_kept else NO_MATCH
        if not sequence.has_content or not sequence.request.reads_prefix_cache:
            return nothing
        num_tokens, index = sequence.num_tokens, self._index
        num_full = (num_tokens - self._recomputes_last_block) // self._block_size
        hashes = self.known_hashes(sequence, num_full)
        if hashes is None or not (blocks := index.find(hashes, num_kept, num_full)):
            return nothing
        if sequence.token_ids is not None:
            contents = self.contents_of(sequence, num_kept, num_kept + len(blocks))
            blocks = blocks[: index.num_equal(blocks, contents)]
        num_cached_tokens = (num_kept + len(blocks)) * self._block_size
        copy_last = False
        if blocks and num_cached_tokens == num_tokens:
            # One token must be computed. Its block can be copied only when its content is there before the step.
            if index.is_pending(blocks[-1]):
                blocks.pop()
                num_cached_tokens -= self._block_size
            else:
                copy_last = not self._pool.is_queued(blocks[-1])
                num_cached_tokens -= 1
        return make_match((blocks, num_cached_tokens, self._pool.count_queued(blocks), copy_last, num_kept, ()))

    def count_leading(self, hashes: list[int]) -> tuple[int, int]:
        """As `BlockManager.cached_prefix`."""
        num_on_device = len(self._index.find(BlockHashes(hashes), 0, len(hashes))) if self._is_enabled else 0
        return num_on_device, 0 if self._offload is None else self._offload.num_held(hashes[num_on_device:])

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """As `BlockManager.register`."""
        num_full = num_tokens // self._block_size
        start = sequence.num_registered_blocks
        if num_full <= start:
            return
        table, hashes = sequence.block_table, self.known_hashes(sequence, num_full)
        if hashes is None or (end := min(num_full, hashes.count)) <= start:
            return
        contents = () if sequence.token_ids is None else [*self.contents_of(sequence, start, end)]
        self._index.add(table, hashes, start, end, contents)
        if self._offload is not None and self._offload.sight is not None:
            self._offload.note_computed(table[start:end], hashes.part(start, end), contents)
        if self._ranked is not None:
            parent = hashes.at(start - 1) if start else None
            self._ranked.note_cached(table[start:end], hashes.part(start, end), parent)
        sequence.num_registered_blocks = end

    def num_cached_at_end(self, sequence: Sequence) -> int:
        """The full blocks of a sequence that has ended, if content that only it has is among them and has no hash; else
        0, as all that is cached is registered."""
        if sequence.token_ids is not None or not (self._is_enabled and sequence.block_table and sequence.has_ended):
            return 0
        num_full = sequence.num_computed_tokens // self._block_size
        return 0 if sequence.hashes is not None and num_full <= sequence.hashes.count else num_full

    def known_hashes(self, sequence: Sequence, num_full: int) -> BlockHashes | None:
        """The hashes of at most the first `num_full` blocks and possibly more, not made yet where they are easily told;
        None where nothing can be shared."""
        if not self._is_enabled:
            return None
        if sequence.token_ids is not None:
            sequence.hash_blocks(self._block_size, num_full)
        return sequence.hashes

    def contents_of(self, sequence: Sequence, start: int, end: int) -> abc.Iterable[Content]:
        """The content of blocks `start` to `end`; nothing where tokens are only counted."""
        tokens, hashes, size = sequence.token_ids, sequence.block_hashes, self._block_size
        if tokens is None or hashes is None:
            return
        for i in range(start, end):
            yield hashes[i - 1] if i else None, token_bytes(tokens[i * size : (i + 1) * size])
