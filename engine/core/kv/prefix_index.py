"""Which block holds which prefix: from the hash of a full block to the blocks of that content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Content = tuple[int | None, bytes]  # the parent's hash and the block's tokens


class _Run:
    """Blocks that were added together and are not entered one by one; eviction shortens a run from its end."""

    __slots__ = ("blocks", "hashes", "length")

    def __init__(self, blocks: list[int], hashes: list[int]) -> None:
        self.blocks = blocks
        self.hashes = hashes
        self.length = len(blocks)  # blocks that are still there


class PrefixIndex:
    """Hashes of full blocks, with the content behind them where tokens are known.

    Several blocks can hold the same content, when prompts are computed side by side: one of them is found, and the
    others take its place in turn when it is evicted.

    Most prompts are evicted before anyone asks for them again. So blocks that are added together are a *run*, of which
    only the first block is entered under its hash. The others are entered when a lookup finds the first block, or when
    another sequence adds its hash. A sequence comes by a prefix only by finding it or by adding it, so of a run that is
    not entered a sequence has registered all hashes or none, and never adds a hash that is only in a run. Who lets a
    sequence keep a part of its prefix must `enter` the runs that begin there. A few blocks are entered at once, and so
    are those whose tokens are known: their hashes can collide. Hashes stand for prefixes, whose ends are evicted first:
    where the first hash that a sequence adds is not there, none of those after it is.

    Attributes:
        shortest_run: fewer blocks are no run; to enter them at once takes no longer.
    """

    shortest_run = 20

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}  # entered ones
        self._runs: dict[int, _Run] = {}  # by the hash of the first block
        self._run_at: dict[int, _Run] = {}  # by the last block
        self._duplicates: dict[int, list[int]] = {}  # more blocks of the same content as the one found
        self._content: dict[int, Content] = {}  # by block
        self._pending: list[list[int]] = []  # added, but only computed by the step being planned

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._blocks

    def find(self, hashes: list[int], limit: int) -> list[int]:
        """The blocks of the longest prefix of the first `limit` of `hashes` that is there."""
        if not hashes or hashes[0] not in self._blocks:
            return []
        blocks = self._find_entered(hashes, 0, limit)
        while blocks and (last := hashes[len(blocks) - 1]) in self._runs:
            self.enter([last])
            blocks += self._find_entered(hashes, len(blocks), limit)
        return blocks

    def _find_entered(self, hashes: list[int], first: int, limit: int) -> list[int]:
        index: dict[Any, Any] = self._blocks
        keys: list[Any] = hashes  # a compiled core would make new objects of numbers
        blocks: list[Any] = []
        for i in range(first, min(limit, len(keys))):
            block = index.get(keys[i])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_equal(self, blocks: list[int], contents: Iterable[Content]) -> int:
        """How many leading blocks really hold these contents: a hash can collide."""
        for i, (block, content) in enumerate(zip(blocks, contents, strict=True)):
            if self._content.get(block) != content:
                return i
        return len(blocks)

    def content_of(self, block: int) -> Content | None:
        """The content that a block was added with; None where tokens are only counted."""
        return self._content.get(block)

    def add(self, blocks: list[int], hashes: list[int], contents: Iterable[Content] = ()) -> None:
        """Let `blocks` be found by `hashes`; the step being planned computes them at the latest."""
        known = dict(zip(blocks, contents, strict=False)) if contents else {}
        if len(blocks) >= self.shortest_run and not known and hashes[0] not in self._blocks:
            self._blocks[hashes[0]] = blocks[0]
            self._runs[hashes[0]] = self._run_at[blocks[-1]] = _Run(blocks, hashes)
        else:
            self.enter(hashes)
            self._enter_each(blocks, hashes)
        self._pending.append(blocks)
        if known:
            self._content.update(known)

    def enter(self, hashes: Iterable[int]) -> None:
        """Enter all blocks of the runs that begin with one of `hashes`."""
        if not self._runs:
            return
        for block_hash in hashes:
            if (run := self._runs.pop(block_hash, None)) is not None:
                del self._run_at[run.blocks[run.length - 1]]
                self._enter_each(run.blocks[1 : run.length], run.hashes[1 : run.length])

    def _enter_each(self, blocks: list[int], hashes: list[int]) -> None:
        found = list(map(self._blocks.setdefault, hashes, blocks))
        if found != blocks:  # a hash was there, or stands twice in `hashes`
            for block, first, block_hash in zip(blocks, found, hashes, strict=True):
                if first != block:
                    self._duplicates.setdefault(block_hash, []).append(block)

    def remove(self, blocks: list[int], hashes: list[int]) -> None:
        """The content of `blocks`, added under these hashes, is about to be overwritten."""
        run_at, left = self._run_at, len(blocks)
        while left:
            if (run := run_at.get(blocks[left - 1])) is not None:
                left = self._shorten(run, blocks, left)
                continue
            start = 0
            if not run_at.keys().isdisjoint(blocks[:left]):
                start = left - 1
                while blocks[start - 1] not in run_at:
                    start -= 1
            self._remove_entered(blocks[start:left], hashes[start:left])
            left = start
        if self._content:
            for block in blocks:
                self._content.pop(block, None)

    def _shorten(self, run: _Run, blocks: list[int], end: int) -> int:
        """Remove the end of a run, which `blocks[:end]` ends with; returns how many blocks are left to remove."""
        start = max(0, end - run.length)
        length = run.length - (end - start)
        if run.blocks[length : run.length] != blocks[start:end]:
            self.enter(run.hashes[:1])  # blocks are evicted in another order than that of their sequence
            return end
        del self._run_at[blocks[end - 1]]
        if length:
            run.length = length
            self._run_at[run.blocks[length - 1]] = run
        else:
            del self._runs[run.hashes[0]]
            self._remove_one(run.blocks[0], run.hashes[0])
        return start

    def _remove_entered(self, blocks: list[int], hashes: list[int]) -> None:
        index: dict[Any, int] = self._blocks
        keys: list[Any] = hashes  # a compiled core would make new objects of numbers
        duplicates = self._duplicates
        if self._runs and not self._runs.keys().isdisjoint(hashes):
            self.enter([*self._runs])  # a block is not the last of its run
        has_duplicates = bool(duplicates) and not duplicates.keys().isdisjoint(hashes)
        for number, block_hash in enumerate(keys):
            if block_hash not in index:  # it is within a run
                self.enter([*self._runs])
            if has_duplicates:
                self._remove_one(blocks[number], block_hash)
            else:
                del index[block_hash]

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
        for first, run in self._runs.items():
            blocks, hashes = run.blocks[: run.length], run.hashes[: run.length]
            assert (hashes[0], self._blocks[first]) == (first, blocks[0]), "a run cannot be found"
            assert self._run_at[blocks[-1]] is run, "a run has another end"
            found += zip(blocks[1:], hashes[1:], strict=True)
        assert len(self._run_at) == len(self._runs), "an end has no run"
        assert len({block_hash for _, block_hash in found}) == len(found), "a hash is entered and in a run"
        found += [(b, block_hash) for block_hash, blocks in self._duplicates.items() for b in blocks]
        assert len(found) == len(hash_of) and dict(found) == hash_of, "index and hashes disagree"
        assert all(self._duplicates.values()), "an empty list of duplicates is kept"
        assert self._content.keys() <= hash_of.keys(), "content is kept of a block without a hash"
        assert all(len(tokens) == 4 * block_size for _, tokens in self._content.values()), "a cut block is findable"

    def check_registered(self, hashes: list[int]) -> None:
        """Prove that a sequence, which registered `hashes`, did so for all of a run or none; raises AssertionError."""
        for first in self._runs.keys() & hashes:
            run = self._runs[first]
            assert set(hashes).issuperset(run.hashes[: run.length]), "a sequence knows a part of a run"
