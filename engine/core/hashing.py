"""Content hashes of KV blocks: a chain, so that each hash stands for the whole prefix up to the end of its block."""

from __future__ import annotations

from collections import abc

import xxhash


def extend_hashes(hashes: list[int], token_ids: abc.Sequence[int], block_size: int, num_blocks: int) -> None:
    """Append to `hashes` those of the blocks that follow, up to `num_blocks` full blocks of `token_ids`.

    The hash of a block is xxh64 over the hash of the block before it (8 bytes, little endian, 0 for the first) and the
    block's tokens as little-endian int32.
    """
    for i in range(len(hashes), num_blocks):
        hashes.append(chain_hash(hashes[-1] if hashes else 0, token_ids[i * block_size : (i + 1) * block_size]))


def token_bytes(token_ids: abc.Sequence[int]) -> bytes:
    """Tokens as little-endian int32: what is hashed, and what is compared on a cache hit."""
    import numpy as np  # imported late, so that --help is fast

    return np.asarray(token_ids, dtype="<i4").tobytes()


def chain_hash(parent_hash: int, token_ids: abc.Sequence[int]) -> int:
    """Hash of a block of tokens that follows the prefix with hash `parent_hash` (0: none)."""
    return xxhash.xxh64_intdigest(parent_hash.to_bytes(8, "little") + token_bytes(token_ids))
