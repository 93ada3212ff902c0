"""SGLang's waiting queue, which is sorted whenever somebody may enter: who comes, or comes back, goes to its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from engine.core.admission.waiting_queue import WaitingQueue, by_arrival
from engine.core.hashing import chain_hash
from engine.core.kv.trees.radix import RadixManager
from engine.core.sequence import Sequence
from engine.core.sglang.budget import max_new_tokens

SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "random")
_MOST_MATCHED = 128  # requests in the queue that are matched with the cache before they are sorted
_REFRESH_INTERVAL = 32  # passes between accesses to the cached prefixes of all that wait
_SHORT_PREFIX = 32  # tokens: with a shorter cached prefix one waits for another in the queue that shares as many


class SglangQueue(WaitingQueue):
    """Sequences in a list.

    Args:
        rule: one of `SCHEDULE_POLICIES`.
        receives_late: who comes is not seen before `receive`.

    Attributes:
        sequences: those that are seen.
        unseen: the others.
    """

    def __init__(self, rule: str, *, receives_late: bool = False) -> None:
        super().__init__(by_arrival)
        self.sequences: list[Sequence] = []
        self.unseen: list[Sequence] = []
        self._receives_late = receives_late
        self._rule = rule
        self._num_passes = 0
        self._num_refreshes = 0

    def receive(self) -> None:
        """See all that have come."""
        self.sequences += self.unseen
        self.unseen.clear()

    def sort(self, blocks: RadixManager) -> None:
        """Put the queue in order; of equals, those who were before others stay before them."""
        queue, rule = self.sequences, self._rule
        self._num_passes += 1
        if not blocks.enable_prefix_caching or rule == "lpm" and len(queue) > _MOST_MATCHED:
            rule = rule if rule in ("lof", "random") else "fcfs"
        if rule == "lpm":
            lengths = self._match(blocks)
            queue.sort(key=lambda each: -lengths[each])
        elif rule == "dfs-weight":
            self._match(blocks)
            queue[:] = [queue[i] for i in blocks.tree.depth_first([blocks.end_of(each) for each in queue])]
        elif rule == "lof":
            queue.sort(key=lambda each: -max_new_tokens(each))
        elif rule == "random":
            queue.sort(key=lambda each: chain_hash(self._num_passes, [each.request_id & 0x7FFFFFFF]))
        if rule in ("lpm", "dfs-weight") or not queue or not blocks.enable_prefix_caching:
            return
        if self._num_refreshes % _REFRESH_INTERVAL == 0:
            for sequence in reversed(queue[:_MOST_MATCHED]):
                blocks.touch(sequence)
        self._num_refreshes += 1

    def _match(self, blocks: RadixManager) -> dict[Sequence, float]:
        """Tokens that each in the queue has in the cache; minus infinity for those who wait for another one in the
        queue, which has the same prefix."""
        lengths: dict[Sequence, float] = {}
        coming: set[int] = set()
        for sequence in self.sequences:
            num_tokens = blocks.touch(sequence)
            lengths[sequence] = min(num_tokens, sequence.num_tokens - 1)
            if num_tokens > _SHORT_PREFIX:
                continue
            hashes = blocks.full_hashes(sequence, sequence.num_tokens)
            num_coming = next((i for i, each in enumerate(hashes) if each not in coming), len(hashes))
            if num_coming * blocks.block_size >= _SHORT_PREFIX:
                lengths[sequence] = -math.inf
            else:
                coming.update(hashes)
        return lengths

    def __len__(self) -> int:
        return len(self.sequences) + len(self.unseen)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.sequences, self.unseen)

    @property
    def head(self) -> Sequence:
        return (self.sequences or self.unseen)[0]

    @property
    def candidate(self) -> Sequence | None:
        return self.head if self else None

    def push(self, sequence: Sequence) -> None:
        is_new = sequence.num_preemptions == 0
        (self.unseen if self._receives_late and is_new else self.sequences).append(sequence)

    def pop(self) -> Sequence:
        return self.sequences.pop(0)

    def first(self, count: int) -> list[Sequence]:
        return [*islice(self, count)]

    def remove(self, sequence: Sequence) -> None:
        (self.unseen if sequence in self.unseen else self.sequences).remove(sequence)

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        assert len({*self}) == len(self), "a sequence waits twice"
