"""Which chunk of the host's memory was of use last, as versions of vLLM tell it (`LRUCachePolicy`).

A chunk is *idle* while no transfer reads or writes it; only idle chunks are evicted.
"""

from __future__ import annotations

from collections import OrderedDict, abc
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol

from engine.core.sequence import Sequence

RecencyRule = Literal["stored", "idle", "request"]


class Recency(Protocol):
    """Chunks by their hashes, in the order in which they are evicted."""

    def insert(self, chunk: int, sequence: Sequence, position: int) -> None:
        """A chunk is written for `sequence`, of which it is the chunk number `position`."""

    def become_idle(self, chunk: int) -> None:
        """No transfer reads or writes the chunk any more."""

    def become_busy(self, chunk: int) -> None:
        """A transfer reads the chunk, which was idle."""

    def touch(self, chunks: abc.Sequence[int]) -> None:
        """Chunks of one prompt are of use; of these the first is evicted last."""

    def access(self, chunks: abc.Mapping[int, int], sequence: Sequence) -> None:
        """`sequence` has asked for these chunks, each with its number in the sequence."""

    def end(self, sequence: Sequence) -> None:
        """`sequence` asks for nothing any more."""

    def idle(self) -> abc.Generator[int]:
        """The idle chunks and possibly others, the one that is evicted first in front."""

    def remove(self, chunk: int) -> None: ...


class StoredOrder:
    """0.19: all chunks in the order in which they were stored or touched, whether idle or not."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def insert(self, chunk: int, sequence: Sequence, position: int) -> None:
        self._chunks[chunk] = None

    def become_idle(self, chunk: int) -> None: ...

    def become_busy(self, chunk: int) -> None: ...

    def touch(self, chunks: abc.Sequence[int]) -> None:
        for chunk in reversed(chunks):
            if chunk in self._chunks:
                self._chunks.move_to_end(chunk)

    def access(self, chunks: abc.Mapping[int, int], sequence: Sequence) -> None: ...

    def end(self, sequence: Sequence) -> None: ...

    def idle(self) -> abc.Generator[int]:
        yield from self._chunks

    def remove(self, chunk: int) -> None:
        del self._chunks[chunk]


class IdleOrder(StoredOrder):
    """0.27: idle chunks in the order in which they became idle or were touched."""

    def insert(self, chunk: int, sequence: Sequence, position: int) -> None: ...

    def become_idle(self, chunk: int) -> None:
        self._chunks[chunk] = None

    def become_busy(self, chunk: int) -> None:
        del self._chunks[chunk]


class RequestOrder:
    """0.33: chunks in the order of the requests that asked for them last, of each the last chunk first.

    A request has one place from its first chunk on. When it ends, all chunks that it asked for go to the end, the last
    one first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], int]] = []  # of places and chunks, those that were left among them
        self._places: dict[int, tuple[int, int]] = {}
        self._place_of: dict[Sequence, int] = {}
        self._asked: dict[Sequence, dict[int, int]] = {}
        self._num_places = 0

    def insert(self, chunk: int, sequence: Sequence, position: int) -> None:
        self._put(chunk, self._place(sequence), -position)

    def become_idle(self, chunk: int) -> None: ...

    def become_busy(self, chunk: int) -> None: ...

    def touch(self, chunks: abc.Sequence[int]) -> None: ...

    def access(self, chunks: abc.Mapping[int, int], sequence: Sequence) -> None:
        asked = self._asked.setdefault(sequence, {})
        new = {chunk: position for chunk, position in chunks.items() if chunk not in asked}
        if not new:
            return
        asked |= new
        place = self._place(sequence)
        for chunk, position in new.items():
            if chunk in self._places and self._places[chunk] < (place, -position):
                self._put(chunk, place, -position)

    def end(self, sequence: Sequence) -> None:
        asked = self._asked.pop(sequence, {})
        for chunk in sorted(asked, key=asked.__getitem__, reverse=True):
            if chunk in self._places:
                self._num_places += 1
                self._put(chunk, self._num_places, 0)
        self._place_of.pop(sequence, None)

    def idle(self) -> abc.Generator[int]:
        passed: list[tuple[tuple[int, int], int]] = []
        heap, places = self._heap, self._places
        try:
            while heap:
                entry = heappop(heap)
                is_current = places.get(entry[1]) == entry[0]
                if is_current and (not passed or passed[-1] != entry):  # it was evicted and stored again at its place
                    passed.append(entry)
                    yield entry[1]
        finally:  # who asks may evict them, or not
            for entry in passed:
                heappush(heap, entry)

    def _put(self, chunk: int, place: int, position: int) -> None:
        self._places[chunk] = (place, position)
        heappush(self._heap, ((place, position), chunk))
        if len(self._heap) > 2 * len(self._places) + 64:
            self._heap = [(place, chunk) for chunk, place in self._places.items()]
            heapify(self._heap)

    def remove(self, chunk: int) -> None:
        del self._places[chunk]

    def _place(self, sequence: Sequence) -> int:
        if sequence not in self._place_of:
            self._num_places += 1
            self._place_of[sequence] = self._num_places
        return self._place_of[sequence]


RECENCIES: dict[RecencyRule, type[StoredOrder | RequestOrder]] = {
    "stored": StoredOrder,
    "idle": IdleOrder,
    "request": RequestOrder,
}
