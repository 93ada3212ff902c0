"""Places where KV blocks can be, and the moves between them."""

from __future__ import annotations

from typing import NamedTuple

DEVICE = "device"
HOST = "host"


class Transfer(NamedTuple):
    """Copy all KV of block `source` of `source_tier` to block `target` of `target_tier`.

    The transfers of a plan run in their order, before the step writes anything.
    """

    source_tier: str
    source: int
    target_tier: str
    target: int

    @property
    def is_within_device(self) -> bool:
        return self.source_tier == self.target_tier == DEVICE


class Tier:
    """`num_blocks` blocks of a memory behind the device's, each free or held by one swapped-out sequence."""

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, which must be free."""
        assert 0 < count <= len(self._free)
        blocks = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return blocks

    def release(self, blocks: list[int]) -> None:
        self._free.extend(reversed(blocks))

    def check_integrity(self, held: list[int]) -> None:
        """Prove, given the blocks that sequences hold, that none is lost or held twice; raises AssertionError."""
        assert sorted([*self._free, *held]) == list(range(self.num_blocks)), "a block is lost or held twice"
