"""What the block manager asks of a pool of the device's blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from engine.core.block_hashes import BlockHashes

Evict = Callable[[list[int], BlockHashes, int, int], None]
"""Is called when blocks are taken whose content could be found: with a block table, the hashes of its blocks, and from
where to where in both these blocks stand."""


@lru_cache(maxsize=1)
def all_ids(num_blocks: int) -> tuple[int, ...]:
    """The ids of all blocks, the last first: the same objects for all servers, so that caches hold them once."""
    return tuple(range(num_blocks - 1, -1, -1))


class Pool:
    """Blocks, each free or held by one or several sequences."""

    # A class, and not a protocol, so that a compiled core finds its methods by place and not by name.

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        raise NotImplementedError

    @property
    def num_extra_references(self) -> int:
        """References to blocks beyond the first to each."""
        raise NotImplementedError

    @property
    def num_shared(self) -> int:
        """Blocks with several references."""
        raise NotImplementedError

    @property
    def num_uncached(self) -> int:
        """Free blocks, or fewer, that are taken before any whose content can be found."""
        raise NotImplementedError

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, which must be free; their content is lost."""
        raise NotImplementedError

    def take_each(self, counts: list[int]) -> list[list[int]]:
        """What `take` gives for each of `counts` in turn."""
        raise NotImplementedError

    def note_loaded(self, blocks: list[int]) -> None:
        """`blocks` were not computed here but copied."""

    def give_back(self, blocks: list[int]) -> None:
        """Let `blocks`, taken and not used, be the next that are taken."""
        raise NotImplementedError

    def hold(self, blocks: list[int]) -> None:
        """Add a reference to each of `blocks`, which are held or cached."""
        raise NotImplementedError

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int = 0) -> None:
        """Drop a reference to every block of `table`, of which the first `num_hashed` can be found by these hashes.

        Where tokens are only counted, the first `num_full` are cached. Nobody looks for those that have no hash, but
        they take their turn among the cached blocks, as in a server, which has a hash for each.

        The table must not change afterwards; `hashes` may be more, and grow.
        """
        raise NotImplementedError

    def drop_shared(self, blocks: list[int]) -> None:
        """Give up one of at least two references to each of these blocks."""
        raise NotImplementedError

    def is_queued(self, block: int) -> bool:
        """Whether a block is free but its content can be found."""
        raise NotImplementedError

    def count_queued(self, blocks: list[int]) -> int:
        """How many of `blocks` are."""
        raise NotImplementedError

    def is_shared(self, block: int) -> bool:
        """Whether several sequences hold a block."""
        raise NotImplementedError

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        """How many blocks become free when all of `tables` are released, and how many have no longer several
        references then."""
        raise NotImplementedError

    def num_references(self, block: int) -> int:
        """How many sequences hold a block that is held."""
        raise NotImplementedError

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove the invariants, given how often sequences refer to each block; returns the hashes of cached ones."""
        raise NotImplementedError
