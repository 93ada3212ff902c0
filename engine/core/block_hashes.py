"""The hashes of a sequence's leading full blocks: numbers >= 0, or below 0 where nobody else can have them.

A hash stands for the whole prefix up to the end of its block. Most prompts are never found again, and of these little
is asked beside the first hash; so hashes that are easily told are made when they are asked for.
"""

from __future__ import annotations


class BlockHashes:
    """Hashes that are there.

    Attributes:
        known: all of them; more may follow.
    """

    __slots__ = ("known",)

    def __init__(self, known: list[int]) -> None:
        self.known = known

    @property
    def count(self) -> int:
        return len(self.known)

    def at(self, place: int) -> int:
        """The hash of block `place`, which is below `count`."""
        return self.known[place]

    def part(self, start: int, end: int) -> list[int]:
        """Those of the blocks from `start` to before `end`, as far as there are any."""
        return self.known[start:end]

    def all(self) -> list[int]:
        return self.known


class SpannedHashes(BlockHashes):
    """`count` hashes, of which each `span` follow one another: the first from `starts[0]` on, and so on."""

    __slots__ = ("_starts", "_span", "_count")

    def __init__(self, starts: list[int], span: int, count: int) -> None:
        super().__init__([])
        self._starts = starts
        self._span = span
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    def at(self, place: int) -> int:
        return self._starts[place // self._span] + place % self._span

    def part(self, start: int, end: int) -> list[int]:
        if self.known:
            return self.known[start:end]
        end, span = min(end, self._count), self._span
        hashes: list[int] = []
        while start < end:
            number = start // span
            begin, stop = number * span, min(end, (number + 1) * span)
            first = self._starts[number] - begin
            hashes += range(first + start, first + stop)
            start = stop
        return hashes

    def all(self) -> list[int]:
        if not self.known:
            self.known = self.part(0, self._count)
        return self.known
