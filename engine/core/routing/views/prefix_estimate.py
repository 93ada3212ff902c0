"""What a router can know of a server's prefix cache: the prompts that it has sent there.

The blocks of a prompt are used from the last to the first, so that a block is never older than those that follow it:
the oldest are dropped first, as the server itself evicts them, and what is left of a prompt is always its beginning.

    root ── run of blocks (system prompt) ─┬─ run (question)      A run is the blocks that all prompts that go through
                                           └─ run (question)      its first one have in common, as far as is known.

So blocks are kept in a tree of runs, and a prompt costs as many steps as it has runs, not as it has blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict


class _Run:
    """Consecutive `blocks` of prompts; `following` has the runs behind the last one, by their first block."""

    __slots__ = ("blocks", "following", "parent")

    def __init__(self, blocks: list[int], parent: _Run | None) -> None:
        self.blocks = blocks
        self.parent = parent
        self.following: dict[int, _Run] = {}


class PrefixEstimate:
    """The `capacity` blocks last used of those that were sent to a server; capacity >= 0.

    A hash stands for a block and all before it: prompts with an equal hash at a place are equal up to there.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._root = _Run([], None)
        self._used: OrderedDict[_Run, None] = OrderedDict()  # the run used last at the end

    def __len__(self) -> int:
        return self._size

    def num_hits(self, hashes: list[int], num_blocks: int) -> int:
        """How many of the leading blocks of a prompt are there, whose full blocks are the first `num_blocks` of
        `hashes`, or all."""
        return self._walk(hashes, min(num_blocks, len(hashes)))[1]

    def add(self, hashes: list[int], num_blocks: int) -> None:
        """A prompt with these full blocks is sent to the server."""
        end = min(num_blocks, len(hashes))
        last, found, common = self._walk(hashes, end)
        if common < len(last.blocks):
            last = self._split(last, common)
        if found < end:
            last = self._extend(last, hashes[found:end])
        while last.parent is not None:
            self._used[last] = None
            self._used.move_to_end(last)
            last = last.parent
        while self._size > self._capacity:
            self._drop_oldest()

    def _walk(self, hashes: list[int], end: int) -> tuple[_Run, int, int]:
        """The last run that the prompt of `end` blocks goes through, how many of its blocks are there, and how many of
        that run."""
        run, found, common = self._root, 0, 0
        while found < end and (following := run.following.get(hashes[found])) is not None:
            run, start = following, found
            blocks = run.blocks
            common = min(len(blocks), end - start)
            if blocks[common - 1] != hashes[start + common - 1]:
                common = bisect_left(range(common), True, key=lambda i: blocks[i] != hashes[start + i])
            found += common
            if common < len(blocks):
                break
        return run, found, common

    def _split(self, run: _Run, count: int) -> _Run:
        """Make the first `count` blocks of a run one of their own, and return it; the rest stay as old as they are."""
        assert run.parent is not None
        first = _Run(run.blocks[:count], run.parent)
        del run.blocks[:count]
        run.parent.following[first.blocks[0]] = first
        first.following[run.blocks[0]] = run
        run.parent = first
        return first

    def _extend(self, run: _Run, blocks: list[int]) -> _Run:
        """Put blocks behind a run, of which all are used now; returns the run that they are in."""
        self._size += len(blocks)
        if run.parent is not None and not run.following:
            run.blocks += blocks
            return run
        run.following[blocks[0]] = last = _Run(blocks, run)
        return last

    def _drop_oldest(self) -> None:
        """Drop blocks beyond the capacity from the end of the oldest run: no run is behind it, as those are older."""
        run = next(iter(self._used))
        excess = self._size - self._capacity
        if excess < len(run.blocks):
            del run.blocks[-excess:]
            self._size -= excess
            return
        assert run.parent is not None
        self._size -= len(run.blocks)
        del run.parent.following[run.blocks[0]], self._used[run]
