"""What is stored on the host and loaded from there: the scheduler's side of vLLM's OffloadingConnector.

    a step computes a chunk ──store job──▶ host ──load job──▶ a waiting sequence, whose blocks are held meanwhile

A chunk is a number of blocks of the device. All that a step completes is stored, whether the device needs the room or
not. Jobs run beside the steps: who copies takes the orders of each step (`Jobs.take_orders`), and tells by `report`
which jobs are done.
"""

from __future__ import annotations

from collections import Counter, abc, defaultdict

from engine.core.offloading.chunks import Chunks, HashesOf
from engine.core.offloading.host_cache import HostCache
from engine.core.offloading.host_loads import HostLoads
from engine.core.offloading.jobs import Job, Jobs, SequenceState
from engine.core.offloading.rules import OffloadingRules
from engine.core.sequence import Sequence, SequenceStatus


class Connector:
    """The cache on the host, and what is on its way there and back.

    Args:
        hashes_of: as `BlockManager.hashes_of`.

    Attributes:
        cache: what the host has.
        rules: what the version of vLLM decides.
        jobs: the copies that are under way.
        loads: what waiting sequences get from the host.
    """

    def __init__(self, cache: HostCache, block_size: int, rules: OffloadingRules, hashes_of: HashesOf) -> None:
        self.cache = cache
        self.rules = rules
        self.jobs = Jobs()
        self._chunks = Chunks(rules.chunk_blocks, block_size, hashes_of)
        self._states: defaultdict[Sequence, SequenceState] = defaultdict(SequenceState)
        self.loads = HostLoads(cache, rules, self.jobs, self._chunks, self._states)
        # Ended since the last plan, and giving way with the last token under way: tokens to store, and known ones.
        self._ended: dict[Sequence, tuple[int, int]] = {}
        self._ending: dict[Sequence, tuple[int, int]] = {}
        self._gave_way: list[Sequence] = []  # while the next step is planned

    @property
    def is_idle(self) -> bool:
        """No job is under way, and none is to come of who has ended."""
        return not self.jobs.under_way and not self._ended and not self._ending

    # -- to the host ----------------------------------------------------------------------------------------------

    def give_way(self, sequence: Sequence) -> None:
        """A sequence gives up its blocks; if its last token is under way, it has ended when the step that is being
        planned runs."""
        state = self._states[sequence]
        state.table = sequence.block_table[: state.num_blocks]
        self._gave_way.append(sequence)
        if sequence.status is SequenceStatus.FINISHED:
            self._ending[sequence] = self._num_storable(sequence), sequence.num_tokens

    def end(self, sequence: Sequence, num_known: int | None = None) -> bool:
        """A sequence has ended, of which `num_known` tokens are known; None for all. Returns whether it holds its
        blocks until `report` names it."""
        state = self._states[sequence]
        num_known = sequence.num_tokens if num_known is None else num_known
        self._ended[sequence] = min(self._num_storable(sequence), num_known), num_known
        if sequence.block_table:
            state.table = sequence.block_table[: state.num_blocks]
        return self.loads.leave(sequence) or state.has_stored

    def _num_storable(self, sequence: Sequence) -> int:
        """Tokens of an ended sequence that may be stored, of the known ones."""
        if sequence.status is SequenceStatus.ABORTED:
            return sequence.num_computed_tokens
        if self.rules.at_end == "committed":
            return max(sequence.request.num_prompt_tokens, sequence.num_tokens - 1)
        return sequence.num_tokens

    def end_plan(
        self,
        ends: abc.Mapping[Sequence, int],
        admitted: abc.Iterable[Sequence],
        num_known: abc.Callable[[Sequence], int],
    ) -> None:
        """A step is planned, or nothing can be: store what it completes, and what is left of ended sequences.

        Args:
            ends: the sequences of the step in order of admission, with the tokens that are computed after it.
            num_known: as `registering.num_known`, of one of them.
        """
        for sequence in ends:
            state, table = self._states[sequence], sequence.block_table
            if state.num_blocks != len(table):
                self.jobs.allocated.update(table[state.num_blocks :])
                state.num_blocks = len(table)
        given_up = [self._states[sequence] for sequence in self._gave_way]
        for state in given_up:
            self.jobs.flush(state.jobs)
        for job in self.jobs.under_way.values():
            state = self._states[job.sequence]
            if job.is_store and (job.sequence in self._ended or state.is_told):
                self._flush_if_reused(job)
        if self.rules.by_request:
            new = [s for s in admitted if not s.num_preemptions]
            ends = {s: ends[s] for s in dict.fromkeys([*new, *ends])}
        for sequence, num_tokens in ends.items():
            known = num_known(sequence)
            self._store(sequence, sequence.block_table, min(num_tokens, known), known)
        self._end_sequences()
        if self.rules.by_request:
            for state in given_up:
                self.cache.end_write(state.unfindable)
                state.unfindable.clear()
        self.jobs.allocated.clear()
        self._gave_way.clear()
        self._ended, self._ending = self._ending, {}

    def _end_sequences(self) -> None:
        ended = sorted(self._ended.items(), key=lambda each: each[0].request.order)
        for sequence, (num_tokens, num_known) in ended if self.rules.at_end != "nothing" else ():
            job = self._store(sequence, self._states[sequence].table, num_tokens, num_known)
            if job is not None:
                self._flush_if_reused(job)
        for sequence, _ in ended:
            self.cache.end(sequence)
            state = self._states[sequence]
            state.is_told = True
            self.jobs.end_sequence(sequence)
            self._forget(sequence, state)

    def _store(self, sequence: Sequence, table: list[int], num_tokens: int, num_known: int) -> Job | None:
        """Store the chunks among the first `num_tokens` tokens of a sequence that were not offered yet, and note that
        those of its `num_known` tokens are of use."""
        state, rules, chunks, size = self._states[sequence], self.rules, self._chunks, self._chunks.num_blocks
        end = min(num_tokens // chunks.num_tokens, len(table) // size)
        if end <= state.next_chunk:
            return None
        hashes = chunks.hashes_of(sequence, num_tokens // chunks.block_size)
        end = min(end, len(hashes) // size)
        offered = {hashes[(number + 1) * size - 1]: number for number in range(state.next_chunk, end)}
        store = self.cache.begin_write(offered, sequence) if offered else None
        if store is None:
            return None
        state.next_chunk = end
        if not store.chunks:
            return None
        self.cache.touch(chunks.of(sequence, num_tokens if rules.by_request else num_known))
        blocks = [table[offered[chunk] * size + i] for chunk in store.chunks for i in range(size)]
        if rules.by_request:
            state.unfindable |= dict.fromkeys(store.chunks)
            state.has_stored = True
        job = self.jobs.start(sequence, store.chunks, blocks, store.places, is_store=True)
        state.jobs.add(job.number)
        return job

    def _flush_if_reused(self, job: Job) -> None:
        """Let the planned step wait for a store whose blocks it has given to others."""
        if not self.rules.by_request and not self.jobs.allocated.isdisjoint(job.blocks):
            self.jobs.flush([job.number])

    # -- jobs that are done ---------------------------------------------------------------------------------------

    def report(self, done: abc.Iterable[int], told: abc.Sequence[Sequence]) -> list[Sequence]:
        """These jobs are done, in this order, and a step has run whose `Orders.ended` were `told`. Returns the ended
        sequences whose blocks nobody reads or writes any more."""
        loaded: list[Sequence] = []
        stored: dict[Sequence, None] = {}
        for number in done:
            job = self.jobs.under_way.pop(number)
            state = self._states[job.sequence]
            state.jobs.remove(number)
            if not job.is_store:
                if not self.loads.end(job):
                    loaded.append(job.sequence)
            elif not self.rules.by_request:
                self.cache.end_write(job.chunks)
            elif state.is_known and not state.jobs:
                stored[job.sequence] = None
            self._forget(job.sequence, state)
        if self.rules.by_request:
            self._end_stores(told, stored)
        return [*loaded, *stored]

    def _end_stores(self, told: abc.Sequence[Sequence], stored: dict[Sequence, None]) -> None:
        """Let be found what was stored of requests of which nothing is being stored any more."""
        for sequence in told:
            if (state := self._states.get(sequence)) is not None:
                state.is_known = True
                if state.has_stored and not state.jobs:
                    stored[sequence] = None
        for sequence in stored:
            self.cache.end_write(self._states.pop(sequence).unfindable)

    def _forget(self, sequence: Sequence, state: SequenceState) -> None:
        if state.is_over:
            self._states.pop(sequence, None)

    def check_integrity(self, sequences: abc.Iterable[Sequence]) -> None:
        """Prove the invariants of cache and jobs, given all `sequences` that wait, run or hold blocks.

        Raises:
            AssertionError: one does not hold.
        """
        jobs, states = self.jobs.under_way, self._states
        numbers = [number for state in states.values() for number in state.jobs]
        assert sorted(numbers) == sorted(jobs), "a job belongs to no sequence"
        loads = [job for job in jobs.values() if not job.is_store]
        self.loads.check_integrity(loads)
        written = {chunk for state in states.values() for chunk in state.unfindable}
        if not self.rules.by_request:
            written = {chunk for job in jobs.values() if job.is_store for chunk in job.chunks}
        self.cache.check_integrity(Counter(chunk for job in loads for chunk in job.chunks), written)
        assert not any(state.is_over for state in states.values()), "a sequence of which nothing is to be done is kept"
        known = {*sequences, *self._ended, *self._ending}
        assert all(state.is_told or sequence in known for sequence, state in states.items()), "an end was not told"
