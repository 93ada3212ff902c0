"""The KV blocks of sequences: matched with cached prefixes, taken, registered, forked, swapped out, released."""

from __future__ import annotations

from collections import abc
from typing import ClassVar, Literal

from engine.core.block_hashes import BlockHashes
from engine.core.kv.eviction import Eviction, RankedPool, make_pool
from engine.core.kv.integrity import check_blocks
from engine.core.kv.offload import Offload
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_cache import PrefixCache
from engine.core.kv.prefix_index import PrefixIndex
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.tiers.tier import DEVICE, HOST, Tier, Transfer
from engine.core.offloading.connector import Connector
from engine.core.sequence import Sequence

FullHit = Literal["copy", "recompute_block"]


class BlockManager:
    """A fixed pool of `num_blocks` KV blocks of `block_size` tokens each, and what the prefix cache knows of them.

    Args:
        eviction: which free blocks are taken first.
        full_hit: what a prompt that is cached to its last token, of which one token must be computed, does: "copy"
            computes that token, in a copy of its block if another sequence holds it; "recompute_block" computes the
            whole last block.
        host: the tier that swapped-out sequences go to; None where none is.
        pool: the blocks, where they are not handed out one by one; then `eviction` is not read.
        offload: the tiers that what leaves the prefix cache goes to, `host` among them; None where it is lost.
        cached_size: memory of a cached block as a multiple of a held one's (`BlockPool`).

    Attributes:
        cache: finds and adds blocks in the prefix index.
        connector: stores on the host what is computed, as vLLM does; None where nothing does.

    Raises:
        ValueError: if `num_blocks` or `block_size` is below 1.
    """

    finds_late: ClassVar[bool] = False  # whether blocks can be found only when what computes them has run
    stores_prompts_first: ClassVar[bool] = False  # then, before what ends in the same step is released
    connector: Connector | None = None
    forks: ClassVar[bool] = True  # whether sequences can share a block that they write to

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        eviction: Eviction = "unhashed_first",
        full_hit: FullHit = "copy",
        host: Tier | None = None,
        pool: Pool | None = None,
        offload: Offload | None = None,
        cached_size: float = 1.0,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks={num_blocks} and block_size={block_size} must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.longest_sequence = num_blocks * block_size  # tokens
        self.state_blocks = 0  # of each sequence, beside its block table
        self.enable_prefix_caching = enable_prefix_caching
        self.host = host
        self.offload = offload
        self.index = PrefixIndex() if offload is None else offload.index
        evict = self.index.remove if offload is None else offload.remove
        self.pool = pool or make_pool(num_blocks, eviction, evict, cached_size)
        self._ranked = self.pool if isinstance(self.pool, RankedPool) else None
        self.cache = PrefixCache(
            self.pool, self.index, offload, block_size, is_enabled=enable_prefix_caching,
            recomputes_last_block=full_hit == "recompute_block",
        )  # fmt: skip
        self.moves: list[Transfer] = [] if offload is None else offload.moves  # of tiers, not in a plan yet

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    def num_used_blocks(self) -> int:
        """Blocks that some sequence references."""
        return self.num_blocks - self.pool.num_free

    def count_blocks(self, without: abc.Iterable[Sequence]) -> tuple[int, int, int]:
        """Blocks that sequences other than `without` reference, blocks that sharing saves, which are the entries of
        their block tables beyond the first for each block, and blocks that several of them reference."""
        tables = [sequence.block_table for sequence in without]
        num_freed, num_unshared = self.pool.num_given_up_by(tables)
        num_saved = self.pool.num_extra_references - sum(map(len, tables)) + num_freed
        return self.num_blocks - self.pool.num_free - num_freed, num_saved, self.pool.num_shared - num_unshared

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, which must be free; their content is lost."""
        return self.pool.take(count)

    def settle(self) -> None:
        """The planned step has run: all content that was added to the prefix cache is there."""
        self.index.settle()

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- prefix cache ---------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest cached prefix of the known tokens of a waiting sequence."""
        return self.cache.match(sequence)

    def cached_prefix(self, hashes: list[int]) -> tuple[int, int]:
        """How many leading blocks of a prompt with these hashes the prefix cache has on the device, and how many after
        them in the tiers behind it; tokens are not compared."""
        return self.cache.count_leading(hashes)

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Let the prefix cache find the full blocks among the first `num_tokens` tokens of `sequence`.

        Their content must be computed by now or by the step being planned.
        """
        self.cache.register(sequence, num_tokens)

    def register_loaded(self, sequence: Sequence, num_tokens: int) -> None:
        """The same where these tokens, or the last of them, were copied here and not computed."""
        self.register(sequence, num_tokens)
        self.pool.note_loaded(sequence.block_table[: num_tokens // self.block_size])

    def announce(self, sequence: Sequence, num_tokens: int) -> None:
        """`register` what the step being planned computes, up to so many tokens."""
        self.register(sequence, num_tokens)

    def checkpoint(self, sequence: Sequence, num_tokens: int) -> None:
        """`register` what is computed of a sequence that runs, up to so many tokens, where blocks are found late."""
        self.register(sequence, num_tokens)

    def hashes_of(self, sequence: Sequence, num_full: int) -> list[int]:
        """The hashes of at most the first `num_full` blocks and possibly more; none where nothing can be shared."""
        hashes = self.cache.known_hashes(sequence, num_full)
        return [] if hashes is None else hashes.all()

    # -- blocks of a sequence -------------------------------------------------------------------------------------

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> int:
        """Free blocks that `admit` would use up for a sequence of `num_tokens` tokens."""
        if match is NO_MATCH:
            return self.blocks_for(num_tokens)
        num_held = match.num_kept + len(match.blocks)
        return self.blocks_for(num_tokens) - num_held + match.num_revived + match.copy_last

    def admit(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> list[Transfer]:
        """Give `sequence` the matched blocks and new ones for up to `num_tokens` tokens; may ask for a copy."""
        if match is NO_MATCH:
            sequence.block_table = self.pool.take(self.blocks_for(num_tokens))
            return []
        if match.blocks:
            self.pool.hold(match.blocks)
            if self._ranked is not None:
                self._ranked.note_hits(match.blocks)
            sequence.block_table = sequence.block_table + match.blocks
            sequence.num_registered_blocks = len(sequence.block_table) - match.copy_last
        copies = [self._copy(sequence, len(sequence.block_table) - 1)] if match.copy_last else []
        if match.hits and self.offload is not None:
            copies += self.offload.load(sequence, match.hits, self.pool)
            self.register_loaded(sequence, len(sequence.block_table) * self.block_size)
        self.extend(sequence, num_tokens)
        return copies

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Give `sequence` the blocks that it lacks to hold `num_tokens` tokens; they must be free."""
        table = sequence.block_table
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > 0:
            table += self.pool.take(missing)

    def release(self, sequence: Sequence) -> None:
        """Drop the references of `sequence`, tail first; hashed blocks that become free stay findable."""
        table, num_hashed = sequence.block_table, sequence.num_registered_blocks
        self.pool.release(table, sequence.hashes, num_hashed, self.cache.num_cached_at_end(sequence))
        sequence.block_table = []
        sequence.num_registered_blocks = 0

    def note_row(self, sequence: Sequence, row: Sequence) -> None:
        """A row of padding has taken over what `sequence` has beside its blocks, which is nothing here."""

    def release_tail(self, sequence: Sequence, num_kept: int) -> None:
        """Release all blocks but the first `num_kept`, the last one first."""
        table, num_hashed = sequence.block_table, sequence.num_registered_blocks
        hashes = sequence.hashes
        if hashes is not None:
            self.index.enter(hashes.part(0, num_kept))  # the match that goes on from there begins within a run
            hashes = BlockHashes(hashes.part(num_kept, num_hashed))
        self.pool.release(table[num_kept:], hashes, 0 if hashes is None else hashes.count)
        sequence.block_table = table[:num_kept]
        sequence.num_registered_blocks = min(num_hashed, num_kept)

    def share(self, fork: Sequence) -> None:
        """Count the references of a fork, which has the block table of the sequence that it was forked from."""
        self.pool.hold(fork.block_table)

    def must_copy(self, sequence: Sequence) -> bool:
        """Whether the block that the next token is written to is held by others too, after a fork."""
        index = (sequence.num_tokens - 1) // self.block_size
        table = sequence.block_table
        return index < len(table) and self.pool.is_shared(table[index])

    def copy_on_write(self, sequence: Sequence) -> Transfer:
        """Give `sequence` a copy of its own of the block that the next token is written to."""
        return self._copy(sequence, (sequence.num_tokens - 1) // self.block_size)

    def _copy(self, sequence: Sequence, index: int) -> Transfer:
        source = sequence.block_table[index]
        self.pool.drop_shared([source])
        (target,) = self.pool.take(1)
        sequence.block_table[index] = target
        return Transfer(DEVICE, source, DEVICE, target)

    # -- behind the device ----------------------------------------------------------------------------------------

    def pop_moves(self) -> list[Transfer]:
        moves, self.moves[:] = self.moves[:], []
        return moves

    def drop(self, sequence: Sequence) -> None:
        """Free all that `sequence` holds, on the device and in the host tier."""
        self.release(sequence)
        if sequence.host_blocks is not None:
            self.drop_host_blocks(sequence)

    def drop_host_blocks(self, sequence: Sequence) -> None:
        """Free what `sequence` holds in the host tier, if anything."""
        if sequence.host_blocks is not None:
            assert self.host is not None
            held, sequence.host_blocks = sequence.host_blocks, None
            self.host.release(held)

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Prove the invariants of pool, index and tiers; arguments and errors as those of `check_blocks`."""
        check_blocks(self.pool, self.index, self.block_size, sequences)
        on_host = [block for sequence in sequences for block in sequence.host_blocks or ()]
        if self.offload is not None:
            self.offload.check_integrity(sequences, {HOST: on_host})
        elif self.connector is not None:
            self.connector.check_integrity(sequences)
        elif self.host is not None:
            self.host.check_integrity(on_host)
