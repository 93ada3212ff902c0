"""Which block holds which prefix: from the hash of a full block to the blocks of that content."""

from __future__ import annotations

from collections.abc import Iterable

_LOOKUP_STRIDE = 64  # hashes looked up at once: most prompts miss early

Content = tuple[int | None, bytes]  # the parent's hash and the block's tokens


class PrefixIndex:
    """Hashes of full blocks, with the content behind them where tokens are known.

    Several blocks can hold the same content, when prompts are computed side by side: one of them is found, and the
    others take its place in turn when it is evicted.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._duplicates: dict[int, list[int]] = {}  # more blocks of the same content as the one found
        self._content: dict[int, Content] = {}  # by block
        self._pending: list[list[int]] = []  # added, but only computed by the step being planned

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._blocks

    def find(self, hashes: list[int], limit: int) -> list[int]:
        """The blocks of the longest prefix of the first `limit` of `hashes` that is there."""
        find = self._blocks.get
        blocks: list[int] = []
        for start in range(0, limit, _LOOKUP_STRIDE):
            found = list(map(find, hashes[start : min(start + _LOOKUP_STRIDE, limit)]))
            if None in found:
                blocks += found[: found.index(None)]  # type: ignore[arg-type]
                break
            blocks += found  # type: ignore[arg-type]
        return blocks

    def num_equal(self, blocks: list[int], contents: Iterable[Content]) -> int:
        """How many leading blocks really hold these contents: a hash can collide."""
        for i, (block, content) in enumerate(zip(blocks, contents, strict=True)):
            if self._content.get(block) != content:
                return i
        return len(blocks)

    def add(self, blocks: list[int], hashes: list[int], contents: Iterable[Content] = ()) -> None:
        """Let `blocks` be found by `hashes`; the step being planned computes them at the latest."""
        found = list(map(self._blocks.setdefault, hashes, blocks))
        if found != blocks:  # a hash was there, or stands twice in `hashes`
            for block, first, block_hash in zip(blocks, found, hashes, strict=True):
                if first != block:
                    self._duplicates.setdefault(block_hash, []).append(block)
        self._pending.append(blocks)
        self._content.update(zip(blocks, contents, strict=False))

    def remove(self, blocks: list[int], hashes: list[int]) -> None:
        """The content of `blocks`, added under these hashes, is about to be overwritten."""
        index, duplicates = self._blocks, self._duplicates
        if duplicates and not duplicates.keys().isdisjoint(hashes):
            for block, block_hash in zip(blocks, hashes, strict=True):
                self._remove_one(block, block_hash)
        else:
            for block_hash in hashes:
                del index[block_hash]
        if self._content:
            for block in blocks:
                self._content.pop(block, None)

    def _remove_one(self, block: int, block_hash: int) -> None:
        duplicates = self._duplicates.get(block_hash)
        if duplicates is None:
            del self._blocks[block_hash]
            return
        if self._blocks[block_hash] == block:
            self._blocks[block_hash] = duplicates.pop(0)
        else:
            duplicates.remove(block)
        if not duplicates:
            del self._duplicates[block_hash]

    def is_pending(self, block: int) -> bool:
        """Whether the content of a block is not there before the step being planned."""
        return any(block in blocks for blocks in self._pending)

    def settle(self) -> None:
        """The planned step has run: all content that was added is there."""
        self._pending.clear()

    def check_integrity(self, hash_of: dict[int, int], block_size: int) -> None:
        """Prove that exactly these blocks can be found, by these hashes; raises AssertionError."""
        found = [(block, block_hash) for block_hash, block in self._blocks.items()]
        found += [(b, block_hash) for block_hash, blocks in self._duplicates.items() for b in blocks]
        assert len(found) == len(hash_of) and dict(found) == hash_of, "index and hashes disagree"
        assert all(self._duplicates.values()), "an empty list of duplicates is kept"
        assert self._content.keys() <= hash_of.keys(), "content is kept of a block without a hash"
        assert all(len(tokens) == 4 * block_size for _, tokens in self._content.values()), "a cut block is findable"
