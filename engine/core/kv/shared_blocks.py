"""Which blocks several sequences hold, and how many: forks of one prompt, and prompts with a common prefix."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from engine.core.block_hashes import BlockHashes


class SharedBlocks:
    """The references to held blocks beyond the first to each.

    Attributes:
        references: how many each block has, of those that have any.
        num_extra: the same of all blocks together.
    """

    def __init__(self) -> None:
        self.references: dict[int, int] = {}
        self.num_extra = 0

    def num_leading(self, blocks: list[int], place: int) -> int:
        """How many of `blocks`, from `place` on, are shared up to the first that is not."""
        references: dict[Any, int] = self.references
        ids: list[Any] = blocks  # here and below: a compiled core would make new objects of numbers
        end, num_ids = place, len(ids)
        while end < num_ids and ids[end] in references:
            end += 1
        return end - place

    def among(self, table: list[int]) -> list[int]:
        """The shared blocks of `table`, in order: most often its first ones, and all there are."""
        references: dict[Any, int] = self.references
        num_leading = self.num_leading(table, 0)
        leading = table[:num_leading]
        if num_leading == len(references):
            return leading
        ids: list[Any] = table
        return leading + [block for block in ids[num_leading:] if block in references]

    def add(self, blocks: list[int]) -> None:
        """One more sequence holds each of `blocks`, which are held."""
        references: dict[Any, int] = self.references
        ids: list[Any] = blocks
        for block in ids:
            references[block] = references.get(block, 0) + 1
        self.num_extra += len(blocks)

    def drop(self, blocks: list[int]) -> None:
        """One sequence less holds each of `blocks`, which are shared."""
        references: dict[Any, int] = self.references
        ids: list[Any] = blocks
        for block in ids:
            num_left = references[block] - 1
            if num_left:
                references[block] = num_left
            else:
                del references[block]
        self.num_extra -= len(blocks)

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        """As `Pool.num_given_up_by`."""
        num_entries, references = sum(map(len, tables)), self.references
        if not references:
            return num_entries, 0
        if len(tables) == 1:  # as nearly always
            held = self.among(tables[0])
            return num_entries - len(held), sum([references[block] == 1 for block in held])
        counts = Counter(chain.from_iterable([self.among(table) for table in tables]))
        num_freed = num_entries - sum([count - (references[block] + 1 == count) for block, count in counts.items()])
        return num_freed, sum([references[block] <= count for block, count in counts.items()])

    def check_integrity(self, references: Counter[int]) -> None:
        """Prove the counts, given how often sequences refer to each block; raises AssertionError."""
        assert {b: n - 1 for b, n in references.items() if n > 1} == self.references, "reference counts are off"
        assert self.num_extra == sum(self.references.values()), "extra references are miscounted"


def without(
    shared: list[int], table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int
) -> tuple[list[int], BlockHashes | None, int, int]:
    """The rest of `table`, of which these are the hashes of the first `num_hashed`, and the first `num_full` are full,
    when blocks of it are left out."""
    others = set(shared)
    num_full -= len(others.intersection(table[:num_full]))
    if hashes is not None:
        hashed = zip(table, hashes.part(0, num_hashed), strict=False)
        hashes = BlockHashes([each for block, each in hashed if block not in others])
        num_hashed = hashes.count
    return [block for block in table if block not in others], hashes, num_hashed, num_full
