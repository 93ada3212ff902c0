"""What waiting sequences get from the host: they hold blocks for it before they enter a step."""

from __future__ import annotations

from collections import defaultdict

from engine.core.offloading.chunks import Chunks
from engine.core.offloading.host_cache import HostCache
from engine.core.offloading.jobs import Job, Jobs, SequenceState
from engine.core.offloading.rules import OffloadingRules
from engine.core.sequence import Sequence


class HostLoads:
    """Looks for the chunks of waiting sequences on the host, and asks for copies of them.

    Args:
        states: of all sequences that the connector knows.

    Attributes:
        waiting: sequences that hold blocks for what was or is being loaded, and since when.
    """

    def __init__(
        self,
        cache: HostCache,
        rules: OffloadingRules,
        jobs: Jobs,
        chunks: Chunks,
        states: defaultdict[Sequence, SequenceState],
    ) -> None:
        self._cache = cache
        self._rules = rules
        self._jobs = jobs
        self._chunks = chunks
        self._states = states
        self.waiting: dict[Sequence, int] = {}
        self._landed: set[Sequence] = set()  # those of them whose load is done
        self._coming: set[int] = set()  # chunks that are being loaded

    def look(self, sequence: Sequence, num_local: int) -> int | None:
        """How many tokens after the first `num_local`, which the device has, the host has of a waiting sequence; None
        where it is too early to tell."""
        state, rules, cache = self._states[sequence], self._rules, self._cache
        state.table = []
        if rules.stores_again:
            state.next_chunk = 0
        if state.jobs and not rules.by_request:
            return None
        chunks = self._chunks.of(sequence, sequence.num_tokens)
        if rules.by_request:
            cache.touch(chunks)
        found = self._find(chunks, num_local)
        if not rules.by_request:
            cache.touch(chunks)
        return found

    def _find(self, chunks: list[int], num_local: int) -> int | None:
        size = self._chunks.num_tokens
        if len(chunks) * size - num_local < size:
            return 0
        chunks, start = chunks[num_local // size :], num_local // size
        num_chunks, must_wait = self._cache.count_leading(chunks, written=not self._rules.by_request)
        num_found = (start + num_chunks) * size - num_local
        if must_wait or num_found < size:
            return None if must_wait else 0
        return None if any(chunk in self._coming for chunk in chunks[:num_chunks]) else num_found

    def begin(self, sequence: Sequence, num_local: int, now: int) -> None:
        """Load what `look` has found: `sequence` has blocks for it behind its first `num_local` tokens."""
        size, state = self._chunks.num_tokens, self._states[sequence]
        end = sequence.num_computed_tokens // size
        chunks = self._chunks.of(sequence, sequence.num_tokens)
        wanted = {chunks[number]: number for number in range(num_local // size, end)}
        blocks = sequence.block_table[num_local // self._chunks.block_size :]
        job = self._jobs.start(sequence, [*wanted], blocks, self._cache.begin_read(wanted, sequence), is_store=False)
        state.jobs.add(job.number)
        state.next_chunk = end
        self._coming.update(wanted)
        self.waiting[sequence] = now
        self._jobs.allocated.update(sequence.block_table)

    def has_landed(self, sequence: Sequence) -> bool:
        """Whether what a sequence loads is there."""
        return sequence in self._landed

    def admit(self, sequence: Sequence, now: int) -> None:
        """A sequence enters the step that is planned `now`."""
        if (since := self.waiting.pop(sequence, None)) is not None:
            self._landed.remove(sequence)
            sequence.request.loading_time += now - since
        self._states[sequence].num_blocks = 0

    def leave(self, sequence: Sequence) -> bool:
        """A sequence has ended; returns whether something is still being loaded for it."""
        is_loading = sequence in self.waiting and sequence not in self._landed
        self.waiting.pop(sequence, None)
        self._landed.discard(sequence)
        return is_loading

    def end(self, job: Job) -> bool:
        """A load is done; returns whether its sequence waits for it, and has not ended meanwhile."""
        self._cache.end_read(job.chunks)
        self._coming.difference_update(job.chunks)
        if job.sequence not in self.waiting:
            return False
        self._landed.add(job.sequence)
        return True

    def check_integrity(self, loads: list[Job]) -> None:
        """Prove that what is coming is what `loads`, all that are under way, bring; raises AssertionError."""
        assert self._coming == {chunk for job in loads for chunk in job.chunks}
        assert {job.sequence for job in loads} >= self.waiting.keys() - self._landed
        assert self._landed <= self.waiting.keys()
