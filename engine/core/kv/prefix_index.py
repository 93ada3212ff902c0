"""Which block holds which prefix: from the hash of a full block to the blocks of that content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from engine.core.block_hashes import BlockHashes

Content = tuple[int | None, bytes]  # the parent's hash and the block's tokens


_PART: Final = 64  # hashes that a lookup asks for at a time


class _Run:
    """Blocks that were added together and are not entered one by one: those at places `start` to `end` of `table`, with
    their hashes at the same places. Eviction shortens a run from its end."""

    __slots__ = ("table", "hashes", "first_hash", "start", "end")

    def __init__(self, table: list[int], hashes: BlockHashes, first_hash: int, start: int, end: int) -> None:
        self.table = table
        self.hashes = hashes
        self.first_hash = first_hash
        self.start = start
        self.end = end


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
        self._pending: list[tuple[list[int], int, int]] = []  # computed by the step being planned, as in `add`

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._blocks

    def find(self, hashes: BlockHashes, start: int, end: int) -> list[int]:
        """The blocks of the longest prefix of the hashes at places `start` to `end` that is there."""
        end = min(end, hashes.count)
        if start >= end or hashes.at(start) not in self._blocks:
            return []
        blocks = self._find_entered(hashes, start, end)
        while (last := hashes.at(start + len(blocks) - 1)) in self._runs:
            self.enter([last])
            blocks += self._find_entered(hashes, start + len(blocks), end)
        return blocks

    def _find_entered(self, hashes: BlockHashes, start: int, end: int) -> list[int]:
        index: dict[Any, Any] = self._blocks
        blocks: list[Any] = []
        for first in range(start, end, _PART):
            keys: list[Any] = hashes.part(first, min(first + _PART, end))  # compiled, numbers would be new objects
            for key in keys:
                block = index.get(key)
                if block is None:
                    return blocks
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

    def add(
        self, table: list[int], hashes: BlockHashes, start: int, end: int, contents: Iterable[Content] = ()
    ) -> None:
        """Let `table[start:end]` be found by the hashes at these places; the step being planned computes them at the
        latest. Before they are removed, the table must not change there.
        """
        known = dict(zip(table[start:end], contents, strict=False)) if contents else {}
        if end - start >= self.shortest_run and not known and (first := hashes.at(start)) not in self._blocks:
            self._blocks[first] = table[start]
            self._runs[first] = self._run_at[table[end - 1]] = _Run(table, hashes, first, start, end)
        else:
            added = hashes.part(start, end)
            self.enter(added)
            self._enter_each(table[start:end], added)
        self._pending.append((table, start, end))
        if known:
            self._content.update(known)

    def enter(self, hashes: Iterable[int]) -> None:
        """Enter all blocks of the runs that begin with one of `hashes`."""
        if not self._runs:
            return
        for block_hash in hashes:
            if (run := self._runs.pop(block_hash, None)) is not None:
                del self._run_at[run.table[run.end - 1]]
                self._enter_each(run.table[run.start + 1 : run.end], run.hashes.part(run.start + 1, run.end))

    def _enter_each(self, blocks: list[int], hashes: list[int]) -> None:
        found = list(map(self._blocks.setdefault, hashes, blocks))
        if found != blocks:  # a hash was there, or stands twice in `hashes`
            for block, first, block_hash in zip(blocks, found, hashes, strict=True):
                if first != block:
                    self._duplicates.setdefault(block_hash, []).append(block)

    def remove(self, table: list[int], hashes: BlockHashes, start: int, end: int) -> None:
        """The content of `table[start:end]`, added under the hashes at these places, is about to be overwritten."""
        run_at, left = self._run_at, end
        while left > start:
            if (run := run_at.get(table[left - 1])) is not None:
                left = self._shorten(run, table, start, left)
                continue
            first = start
            if not run_at.keys().isdisjoint(table[start:left]):
                first = left - 1
                while table[first - 1] not in run_at:
                    first -= 1
            self._remove_entered(table[first:left], hashes.part(first, left))
            left = first
        if self._content:
            for block in table[start:end]:
                self._content.pop(block, None)

    def _shorten(self, run: _Run, table: list[int], start: int, end: int) -> int:
        """Remove the end of a run, which `table[start:end]` ends with; returns the end of what is left to remove."""
        first = max(start, end - (run.end - run.start))
        run_end = run.end - (end - first)
        # A table has no block twice: in the run's own the blocks before its last are those of the run.
        if run.table is not table and run.table[run_end : run.end] != table[first:end]:
            self.enter([run.first_hash])  # blocks are evicted in another order than that of their sequence
            return end
        del self._run_at[table[end - 1]]
        if run_end > run.start:
            run.end = run_end
            self._run_at[run.table[run_end - 1]] = run
        else:
            del self._runs[run.first_hash]
            self._remove_one(run.table[run.start], run.first_hash)
        return first

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
        return any(block in table[start:end] for table, start, end in self._pending)

    def settle(self) -> None:
        """The planned step has run: all content that was added is there."""
        self._pending.clear()

    def check_integrity(self, hash_of: dict[int, int], block_size: int) -> None:
        """Prove that exactly these blocks can be found, by these hashes; raises AssertionError."""
        found = [(block, block_hash) for block_hash, block in self._blocks.items()]
        for first, run in self._runs.items():
            blocks, hashes = run.table[run.start : run.end], run.hashes.part(run.start, run.end)
            assert hashes[0] == run.first_hash == first, "a run has another first hash"
            assert self._blocks[first] == blocks[0], "a run cannot be found"
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
            assert set(hashes).issuperset(run.hashes.part(run.start, run.end)), "a sequence knows a part of a run"
