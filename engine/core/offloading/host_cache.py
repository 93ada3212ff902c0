"""The host's memory behind the device, in chunks of blocks: vLLM's `CPUOffloadingManager`."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.core.offloading.recency import RECENCIES, Recency, RecencyRule
from engine.core.sequence import Sequence

_BEING_WRITTEN = -1


class Store(NamedTuple):
    """Chunks that are to be written, by their hashes, and their places on the host."""

    chunks: list[int]
    places: list[int]


class HostCache:
    """`num_chunks` places, each free or cached; a cached one is being written, being read, or idle.

    Content is found by the hash of a chunk's last block alone, which stands for all before it.
    """

    def __init__(self, num_chunks: int, recency: RecencyRule) -> None:
        self.num_chunks = num_chunks
        self._free: list[int] = []  # given back; those from `_num_used` on were never used
        self._num_used = 0
        self._places: dict[int, int] = {}  # by hash
        self._readers: dict[int, int] = {}  # by hash; how many transfers read the chunk, or that it is being written
        self._recency: Recency = RECENCIES[recency]()
        self._num_idle = 0

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._places

    def is_readable(self, chunk: int) -> bool:
        """Whether a cached chunk has been written."""
        return self._readers[chunk] != _BEING_WRITTEN

    def count_leading(self, chunks: abc.Sequence[int], *, written: bool) -> tuple[int, bool]:
        """How many of `chunks` are cached up to the first that is not, and whether any of these is being `written`,
        which else is as one that is not cached."""
        is_written = False
        for number, chunk in enumerate(chunks):
            if chunk not in self or not (written or self.is_readable(chunk)):
                return number, is_written
            is_written |= not self.is_readable(chunk)
        return len(chunks), is_written

    def touch(self, chunks: abc.Sequence[int]) -> None:
        """Note that these chunks of one prompt are of use."""
        self._recency.touch(chunks)

    def begin_read(self, chunks: abc.Mapping[int, int], sequence: Sequence) -> list[int]:
        """Keep readable chunks, each with its number in `sequence`, until `end_read`; returns their places."""
        for chunk in chunks:
            if not self._readers[chunk]:
                self._recency.become_busy(chunk)
                self._num_idle -= 1
            self._readers[chunk] += 1
        self._recency.access(chunks, sequence)
        return [self._places[chunk] for chunk in chunks]

    def end_read(self, chunks: abc.Iterable[int]) -> None:
        for chunk in chunks:
            self._readers[chunk] -= 1
            if not self._readers[chunk]:
                self._recency.become_idle(chunk)
                self._num_idle += 1

    def begin_write(self, chunks: abc.Mapping[int, int], sequence: Sequence) -> Store | None:
        """Places for those of `chunks` that are not cached; None where too few can be evicted, and then none is."""
        new = [chunk for chunk in chunks if chunk not in self._places]
        asked = {c: n for c, n in chunks.items() if c not in self._places or self.is_readable(c)}
        self._recency.access(asked, sequence)
        num_fresh = self.num_chunks - self._num_used
        num_evicted = len(new) - len(self._free) - num_fresh
        if num_evicted > 0:
            evicted = self._choose(num_evicted, chunks)
            if evicted is None:
                return None
            self._num_idle -= num_evicted
            for chunk in evicted:
                self._recency.remove(chunk)
                del self._readers[chunk]
                self._free.append(self._places.pop(chunk))
        places = []
        for chunk in new:
            if self._num_used < self.num_chunks:
                place = self._num_used
                self._num_used += 1
            else:
                place = self._free.pop()
            places.append(place)
            self._places[chunk], self._readers[chunk] = place, _BEING_WRITTEN
            self._recency.insert(chunk, sequence, chunks[chunk])
        return Store(new, places)

    def end_write(self, chunks: abc.Iterable[int]) -> None:
        """The chunks can be read, those that could not."""
        for chunk in chunks:
            if self._readers.get(chunk) == _BEING_WRITTEN:
                self._readers[chunk] = 0
                self._recency.become_idle(chunk)
                self._num_idle += 1

    def end(self, sequence: Sequence) -> None:
        """`sequence` has ended, and all that is stored of it was asked for."""
        self._recency.end(sequence)

    def _choose(self, count: int, spared: abc.Container[int]) -> list[int] | None:
        if count > self._num_idle:  # steps that find no room ask again and again
            return None
        chosen = []
        idle = self._recency.idle()
        for chunk in idle:
            if not self._readers[chunk] and chunk not in spared:
                chosen.append(chunk)
                if len(chosen) == count:
                    break
        idle.close()
        return chosen if len(chosen) == count else None

    def check_integrity(self, read: abc.Mapping[int, int], written: abc.Set[int]) -> None:
        """Prove that no place is lost or held twice, and that what is idle can be evicted; raises AssertionError.

        Args:
            read: by how many transfers chunks are being read.
            written: chunks that are being written.
        """
        assert sorted([*self._free, *self._places.values()]) == list(range(self._num_used)), "a place is lost"
        assert self._num_used <= self.num_chunks and len(self._places) <= self.num_chunks
        assert self._places.keys() == self._readers.keys()
        assert {chunk: count for chunk, count in self._readers.items() if count > 0} == read, "readers are miscounted"
        assert {chunk for chunk, count in self._readers.items() if count == _BEING_WRITTEN} == written
        evictable = [chunk for chunk in self._recency.idle() if not self._readers[chunk]]
        assert len(evictable) == len({*evictable}) == list(self._readers.values()).count(0), "who is idle is not known"
        assert self._num_idle == len(evictable), "who is idle is miscounted"
