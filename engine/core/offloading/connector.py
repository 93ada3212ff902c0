"""What is stored on the host and loaded from there: the scheduler's side of vLLM's OffloadingConnector.

    a step computes a chunk ──store job──▶ host ──load job──▶ a waiting sequence, whose blocks are held meanwhile

A chunk is a number of blocks of the device. All that a step completes is stored, whether the device needs the room or
not. Jobs run beside the steps; who carries them out asks for them by `take_orders`, and tells by `report` which are
done.
"""

from __future__ import annotations

from collections import abc

from engine.core.offloading.host_cache import HostCache
from engine.core.offloading.jobs import Job, Orders, SequenceState
from engine.core.offloading.rules import OffloadingRules
from engine.core.sequence import Sequence, SequenceStatus


class Connector:
    """The cache on the host, and what is on its way there and back.

    Attributes:
        now: when the step is planned.
    """

    def __init__(self, cache: HostCache, block_size: int, rules: OffloadingRules) -> None:
        self.cache = cache
        self.rules = rules
        self._jobs: list[Job] = []
        self._flushed: set[int] = set()
        self.now = 0
        self._block_size = block_size
        self._chunk_tokens = block_size * rules.chunk_blocks
        self._states: dict[Sequence, SequenceState] = {}
        self._loading: dict[Sequence, bool] = {}  # and whether the load is done
        self._coming: set[int] = set()  # chunks that are being loaded
        self._ended: dict[Sequence, int] = {}  # since the last plan, with the tokens that may be stored
        self._ending: dict[Sequence, int] = {}  # likewise, of those that gave way and end with the next step
        self._gave_way: list[Sequence] = []  # while the next step is planned
        self._told: list[Sequence] = []  # those of the last plan
        self._allocated: set[int] = set()  # blocks that the planned step has given out
        self._under_way: dict[int, Job] = {}
        self._num_jobs = 0

    @property
    def is_idle(self) -> bool:
        """No job is under way, and none is to come of who has ended."""
        return not self._under_way and not self._ended and not self._ending

    # -- up -------------------------------------------------------------------------------------------------------

    @property
    def loading(self) -> abc.Collection[Sequence]:
        """Waiting sequences that hold blocks."""
        return self._loading.keys()

    def look(self, sequence: Sequence, hashes: list[int], num_local: int) -> int | None:
        """How many tokens after the first `num_local` the host has of a waiting sequence; None where it is too early to
        tell."""
        state, rules, cache = self._state(sequence), self.rules, self.cache
        state.table = []
        if rules.stores_again:
            state.next_chunk = 0
        if state.jobs and not rules.by_request:
            return None
        chunks = self._chunks(hashes, sequence.num_tokens)
        if rules.by_request:
            cache.touch(chunks)
        found = self._find(chunks, num_local)
        if not rules.by_request:
            cache.touch(chunks)
        return found

    def _find(self, chunks: list[int], num_local: int) -> int | None:
        cache, size = self.cache, self._chunk_tokens
        start, end, must_wait = num_local // size, 0, False
        if len(chunks) * size - num_local < size:
            return 0
        for end in range(start, len(chunks) + 1):
            if end == len(chunks) or chunks[end] not in cache:
                break
            if not cache.is_readable(chunks[end]):
                if self.rules.by_request:
                    break
                must_wait = True
        num_found = end * size - num_local
        if end == start or must_wait or num_found < size:
            return None if must_wait else 0
        return None if any(chunk in self._coming for chunk in chunks[start:end]) else num_found

    def begin_load(self, sequence: Sequence, hashes: list[int], num_local: int) -> None:
        """Load what `look` has found: `sequence` has blocks for it behind its first `num_local` tokens."""
        size, state = self._chunk_tokens, self._state(sequence)
        end = sequence.num_computed_tokens // size
        numbers = range(num_local // size, end)
        chunks = self._chunks(hashes, sequence.num_tokens)
        wanted = {chunks[number]: number for number in numbers}
        blocks = sequence.block_table[num_local // self._block_size :]
        self._start(state, sequence, False, [*wanted], blocks, self.cache.begin_read(wanted, sequence))
        state.next_chunk = end
        self._coming.update(wanted)
        self._loading[sequence] = False
        self._allocated.update(sequence.block_table)

    def is_loading(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence holds blocks for what was or is being loaded."""
        return sequence in self._loading

    def has_landed(self, sequence: Sequence) -> bool:
        """Whether what a sequence loads is there."""
        return self._loading[sequence]

    def admit(self, sequence: Sequence) -> None:
        """A sequence has entered a step."""
        self._loading.pop(sequence, None)
        self._state(sequence).num_blocks = 0

    # -- down -----------------------------------------------------------------------------------------------------

    def end(self, sequence: Sequence) -> bool:
        """A sequence has ended. Returns whether it holds its blocks until `report` names it."""
        state = self._state(sequence)
        self._ended[sequence] = self._committed(sequence)
        if sequence.block_table:
            state.table = sequence.block_table[: state.num_blocks]
        is_loading = not self._loading.pop(sequence, True)
        return is_loading or self.rules.by_request and state.has_stored

    def give_way(self, sequence: Sequence) -> None:
        """A sequence gives up its blocks; if its last token is under way, it has ended when the step that is being
        planned runs."""
        state = self._state(sequence)
        state.table = sequence.block_table[: state.num_blocks]
        self._gave_way.append(sequence)
        if sequence.status is SequenceStatus.FINISHED:
            self._ending[sequence] = self._committed(sequence)

    def _committed(self, sequence: Sequence) -> int:
        """Tokens of an ended sequence that may be stored."""
        if sequence.status is SequenceStatus.ABORTED:
            return min(sequence.num_computed_tokens, sequence.num_tokens)
        if self.rules.at_end == "committed":
            return max(sequence.request.num_prompt_tokens, sequence.num_tokens - 1)
        return sequence.num_tokens

    def end_plan(
        self,
        ends: abc.Mapping[Sequence, int],
        admitted: abc.Iterable[Sequence],
        hashes_of: abc.Callable[[Sequence, int], list[int]],
    ) -> None:
        """A step is planned, or nothing can be: store what it completes, and what those need that have ended.

        Args:
            ends: the sequences of the step in order of admission, with the tokens that are computed after it.
            hashes_of: as `BlockManager.hashes_of`.
        """
        for sequence in ends:
            state = self._state(sequence)
            self._allocated.update(sequence.block_table[state.num_blocks :])
            state.num_blocks = len(sequence.block_table)
        given_up = [self._state(sequence) for sequence in self._gave_way]
        for state in given_up:
            self._flushed.update(state.jobs)
        for job in self._under_way.values():
            if job.is_store and job.sequence in self._states and self._has_ended(job.sequence):
                self._flush_reused(job)
        if self.rules.by_request:
            new = [s for s in admitted if not s.num_preemptions]
            ends = {s: ends[s] for s in dict.fromkeys([*new, *ends])}
        for sequence, num_tokens in ends.items():
            num_tokens = min(num_tokens, sequence.num_tokens)
            hashes = hashes_of(sequence, num_tokens // self._block_size)
            self._store(sequence, sequence.block_table, hashes, num_tokens)
        self._end_sequences(hashes_of)
        if self.rules.by_request:
            for state in given_up:
                self.cache.end_write(state.written)
                state.written.clear()
        self._allocated.clear()
        self._gave_way.clear()
        self._ended, self._ending = self._ending, {}

    def _end_sequences(self, hashes_of: abc.Callable[[Sequence, int], list[int]]) -> None:
        ended = sorted(self._ended.items(), key=lambda each: each[0].request.order)
        for sequence, num_tokens in ended if self.rules.at_end != "nothing" else ():
            hashes = hashes_of(sequence, num_tokens // self._block_size)
            job = self._store(sequence, self._states[sequence].table, hashes, num_tokens)
            if job is not None:
                self._flush_reused(job)
        for sequence, _ in ended:
            self.cache.end(sequence)
            state = self._states[sequence]
            state.is_told = True
            self._told.append(sequence)
            self._forget(sequence, state)

    def _store(self, sequence: Sequence, table: list[int], hashes: list[int], num_tokens: int) -> Job | None:
        """Store the chunks among the first `num_tokens` tokens of a sequence that were not offered yet."""
        state, rules = self._state(sequence), self.rules
        chunks = self._chunks(hashes, num_tokens)[: len(table) // rules.chunk_blocks]
        offered = {chunks[number]: number for number in range(state.next_chunk, len(chunks))}
        if not offered:
            return None
        store = self.cache.begin_write(offered, sequence)
        if store is None:
            return None
        state.next_chunk = len(chunks)
        if not store.chunks:
            return None
        self.cache.touch(self._chunks(hashes, num_tokens if rules.by_request else sequence.num_tokens))
        size = rules.chunk_blocks
        blocks = [table[offered[chunk] * size + i] for chunk in store.chunks for i in range(size)]
        state.written |= dict.fromkeys(store.chunks)
        state.has_stored = True
        return self._start(state, sequence, True, store.chunks, blocks, store.places)

    def _flush_reused(self, job: Job) -> None:
        if not self.rules.by_request and not self._allocated.isdisjoint(job.blocks):
            self._flushed.add(job.number)

    # -- jobs -----------------------------------------------------------------------------------------------------

    def is_under_way(self, number: int) -> bool:
        return number in self._under_way

    def take_orders(self) -> Orders:
        """What was asked for since this was called last."""
        orders = Orders(self._jobs, self._flushed, self._told)
        self._jobs, self._flushed, self._told = [], set(), []
        return orders

    def report(self, done: abc.Iterable[int], told: abc.Sequence[Sequence]) -> list[Sequence]:
        """These jobs are done, in this order, and `Orders.ended` of the step, `told`, is known. Returns the ended
        sequences whose blocks nobody reads or writes any more."""
        loaded: list[Sequence] = []
        stored: dict[Sequence, None] = {}
        for number in done:
            job = self._under_way.pop(number)
            state = self._states[job.sequence]
            del state.jobs[number]
            if job.is_store:
                if not self.rules.by_request:
                    self.cache.end_write(job.chunks)
                elif state.is_known and not state.jobs:
                    stored[job.sequence] = None
            else:
                self.cache.end_read(job.chunks)
                self._coming.difference_update(job.chunks)
                if job.sequence in self._loading:
                    self._loading[job.sequence] = True
                else:
                    loaded.append(job.sequence)
            self._forget(job.sequence, state)
        if self.rules.by_request:
            for sequence in told:
                if (known := self._states.get(sequence)) is None:
                    continue
                known.is_known = True
                if known.has_stored and not known.jobs:
                    stored[sequence] = None
            for sequence in stored:
                self.cache.end_write(self._states.pop(sequence).written)
        return [*loaded, *stored]

    # -- in small -------------------------------------------------------------------------------------------------

    def _start(
        self,
        state: SequenceState,
        sequence: Sequence,
        is_store: bool,
        chunks: list[int],
        blocks: list[int],
        places: list[int],
    ) -> Job:
        self._num_jobs += 1
        job = Job(self._num_jobs, self.now, sequence, is_store, chunks, blocks, places)
        state.jobs[job.number] = self._under_way[job.number] = job
        self._jobs.append(job)
        return job

    def _chunks(self, hashes: list[int], num_tokens: int) -> list[int]:
        """Hashes of the full chunks of the first `num_tokens` tokens."""
        size = self.rules.chunk_blocks
        return hashes[size - 1 : num_tokens // self._chunk_tokens * size : size]

    def _state(self, sequence: Sequence) -> SequenceState:
        if sequence not in self._states:
            self._states[sequence] = SequenceState()
        return self._states[sequence]

    def _has_ended(self, sequence: Sequence) -> bool:
        return sequence in self._ended or self._states[sequence].is_told

    def _forget(self, sequence: Sequence, state: SequenceState) -> None:
        """Drop what is known of a sequence of which nothing is to be done any more."""
        if state.is_told and not state.jobs and not (self.rules.by_request and state.has_stored):
            self._states.pop(sequence, None)

    def check_integrity(self) -> None:
        """Prove the invariants of the cache and of the jobs; raises AssertionError."""
        self.cache.check_integrity()
        jobs = [number for state in self._states.values() for number in state.jobs]
        assert sorted(jobs) == sorted(self._under_way), "a job belongs to no sequence"
