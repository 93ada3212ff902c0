"""The admitted sequences of one lane and what can happen to one of them.

    waiting ──start──▶ prefilling ──last chunk──▶ decoding ──last token──▶ ending ──commit──▶ released
       ▲  └──park──▶ parked ──ready──▶ ┘ or ───────▶ ┘ │
       └──────────────────── preempt ──────────────────┘

A plan is *advanced* when what it is certain to bring is counted, its tokens, and *committed* when it has run. Between
the two, when the next step is planned while this one runs, a sequence that gets its last token is ending: it keeps its
seat and its blocks.
"""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Mapping

from engine.core.decodes.interface import Decodes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.tier import Transfer
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence, SequenceStatus
from engine.core.waiting_queue import WaitingQueue

Stopped = Mapping[Sequence, int]
NOBODY: Stopped = {}


class Flight:
    """A plan that is not committed yet.

    Attributes:
        is_advanced: its tokens are counted.
        started: sequences to which the last chunk of a prompt gave a token.
        ended: sequences that got their last token with it.
        victims: decoding sequences that got a token with it and were preempted before it was committed.
    """

    __slots__ = ("plan", "is_advanced", "started", "ended", "victims")

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.is_advanced = False
        self.started: abc.Sequence[Sequence] = ()
        self.ended: list[Sequence] = []
        self.victims: abc.Sequence[Sequence] = ()


class RunningSet:
    """Sequences from their admission until their blocks are released.

    Args:
        blocks: where their blocks come from and go to.
        waiting: where preempted ones go; its head may fit whenever something is released.
        decodes: an empty calendar for those that decode.
        lag: steps that pass until the tokens of a planned step are known when the next one is planned: 0, or 1 when
            steps are planned ahead. The block that a decode fills is registered that much later.

    Attributes:
        sequences: all of them, in order of admission.
        prefilling: those whose known tokens are not all computed, in order of admission.
        decodes: those that decode.
        paused: those that decode but sit out the planned step.
        parked: those that wait for something that is not a step.
        forked: those that may have to copy a block that they share before they write into it.
        ending: those that got their last token in a plan that is not committed.
        num_reserved: seats of sequences that will be forked from admitted ones.
        flights: plans that are not committed, at most two, in order.
    """

    def __init__(self, blocks: BlockManager, waiting: WaitingQueue, decodes: Decodes, *, lag: int) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.decodes = decodes
        self.paused: dict[Sequence, None] = {}
        self.parked: dict[Sequence, None] = {}
        self.forked: dict[Sequence, None] = {}
        self.ending: dict[Sequence, None] = {}
        self.num_reserved = 0
        self.flights: deque[Flight] = deque()
        self._blocks = blocks
        self._waiting = waiting
        self.lag = lag
        self._returning: list[Sequence] = []  # ready since the plan under way was made
        self._last_decode_time: int | None = None

    @property
    def num_seats(self) -> int:
        """Seats that are taken."""
        return len(self.sequences) + self.num_reserved

    # -- while a step is planned ----------------------------------------------------------------------------------

    def start(self, sequence: Sequence, num_cached_tokens: int, now: int) -> None:
        """Admit a sequence that has its first blocks, `num_cached_tokens` of them computed."""
        self._seat(sequence, SequenceStatus.PREFILLING, now)
        sequence.set_computed(num_cached_tokens)
        if not sequence.num_preemptions:
            sequence.num_cached_tokens = num_cached_tokens
        self.prefilling[sequence] = None

    def park(self, sequence: Sequence, now: int) -> None:
        """Admit a sequence that has its blocks and cannot run before `ready`."""
        self._seat(sequence, SequenceStatus.PARKED, now)
        self.parked[sequence] = None

    def ready(self, sequence: Sequence) -> None:
        """What a parked sequence waited for is there: it takes part in the next plan."""
        if self.flights and not self.flights[-1].is_advanced:
            self._returning.append(sequence)  # it gets no token of the plan that is under way
            return
        del self.parked[sequence]
        self._waiting.head_blocked = False  # it may fill a block that the first in the queue can share
        self._blocks.drop_host_blocks(sequence)
        if sequence.is_prefilled:
            self.decodes.join(sequence)
        else:
            sequence.status = SequenceStatus.PREFILLING
            self.prefilling[sequence] = None

    def register_filled(self, ahead: int, stopped: Stopped = NOBODY) -> None:
        """Register the blocks of decodes that are known to be full when the step `ahead` of the next one is planned."""
        for sequence, num_tokens in self.decodes.filling(ahead - self.lag):
            if sequence not in stopped:
                self._blocks.register(sequence, num_tokens)

    def unshare(self) -> list[Transfer]:
        """Give forked sequences copies of the shared blocks that they write to in the next decode step."""
        copies = [self._blocks.copy_on_write(s) for s in self.forked if self._blocks.must_copy(s)]
        self.forked.clear()
        return copies

    def num_shared_blocks(self) -> int:
        """At most how many blocks `unshare` takes."""
        return sum(map(self._blocks.must_copy, self.forked))

    def pause(self, sequence: Sequence) -> None:
        """Let a decoding sequence sit out the step that is being planned."""
        self._note_last_token(sequence)
        self.decodes.remove(sequence)
        sequence.leave(SequenceStatus.DECODING)
        self.paused[sequence] = None

    def resume(self) -> None:
        """Let the paused sequences decode again."""
        self._waiting.head_blocked = False  # they may fill a block that the first in the queue can share
        for sequence in self.paused:
            self.decodes.join(sequence)
        self.paused.clear()

    def preempt(self, sequence: Sequence, *, keeps_copy: bool) -> list[Transfer]:
        """Take the blocks of `sequence`, which goes back to the queue with what it had generated.

        With `keeps_copy` its KV moves to the host tier, by the transfers returned; else it is thrown away.
        """
        num_known = sequence.num_computed_tokens
        if self._note_last_token(sequence):
            num_known -= self.lag
        self._leave(sequence, SequenceStatus.WAITING)
        sequence.num_preemptions += 1
        transfers = []
        if keeps_copy:
            transfers = self._blocks.swap_out(sequence)
        else:
            sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.num_computed_tokens)
            self._blocks.name_content(sequence, num_known)
            sequence.set_computed(0)
        self._release(sequence)
        self._waiting.push(sequence)
        return transfers

    def release_early(self, sequence: Sequence) -> None:
        """Let an ending sequence go at once, because its blocks are needed."""
        del self.ending[sequence]
        self._release(sequence)

    # -- when a plan is certain, and when it has run ---------------------------------------------------------------

    def advance(self, flight: Flight, stopped: Stopped = NOBODY) -> None:
        """Count the tokens of a plan; `stopped` tells what is known of stop conditions, as in `Scheduler.commit`."""
        plan = flight.plan
        flight.is_advanced = True
        if plan.num_decodes:
            if self.decodes.findable:
                for ahead in range(1, plan.num_steps):
                    self.register_filled(ahead, stopped)
            ended = self.decodes.advance(plan.num_steps)
            for sequence in stopped:
                if sequence in self.decodes.sequences:
                    self.decodes.remove(sequence)
                    ended.append(sequence)
            for sequence in ended:
                self._end(flight, sequence, stopped)
        if plan.prefills:
            self._advance_prefills(flight, stopped)
        if self.paused:
            self.resume()
        for sequence in self._returning:
            if sequence in self.parked:
                self.ready(sequence)
        self._returning.clear()

    def _advance_prefills(self, flight: Flight, stopped: Stopped) -> None:
        self._waiting.head_blocked = False  # what was computed may shorten the prompt of the first in the queue
        started: list[Sequence] = []
        for sequence, start, num_tokens, is_last in flight.plan.prefills:
            if sequence not in self.prefilling:  # aborted meanwhile
                continue
            sequence.set_computed(start + num_tokens)
            if is_last:
                started += self._finish_prefill(flight, sequence, stopped)
        flight.started = started

    def settle(self, flight: Flight, now: int, stopped: Stopped) -> list[int]:
        """A plan has run: note the times of its tokens and release who ended; returns gaps around preemptions."""
        if not flight.is_advanced:
            self.advance(flight, stopped)
        elif stopped:
            for sequence in stopped:
                self._stop_late(flight, sequence, stopped[sequence])
        resumed_gaps: list[int] = []
        for sequence in flight.started:
            if sequence.request.first_token_time is None:
                sequence.request.first_token_time = now
            elif sequence.last_token_time is not None:
                resumed_gaps.append(now - sequence.last_token_time)
            sequence.last_token_time = now
        if flight.plan.num_decodes:
            self._last_decode_time = now
            for sequence in flight.victims:
                sequence.last_token_time = now
        for sequence in self._in_order_of_release(flight, stopped):
            if sequence in self.ending:
                del self.ending[sequence]
                self._blocks.register(sequence, sequence.num_tokens - 1)
                self._release(sequence)
        return resumed_gaps

    def abort(self, sequence: Sequence) -> None:
        self._leave(sequence, SequenceStatus.ABORTED)
        self._release(sequence)

    # -- between states -------------------------------------------------------------------------------------------

    def _note_last_token(self, sequence: Sequence) -> bool:
        """Note when a sequence that leaves the decodes got its last token; False if not from a decode step."""
        if sequence not in self.decodes.sequences or sequence in self.decodes.fresh:
            return False
        sequence.last_token_time = self._last_decode_time
        if self.flights:
            self.flights[-1].victims = [*self.flights[-1].victims, sequence]
        return True

    def _seat(self, sequence: Sequence, status: SequenceStatus, now: int) -> None:
        sequence.status = status
        self.num_reserved += sequence.num_forks
        if sequence.request.first_scheduled_time is None:
            sequence.request.first_scheduled_time = now
        self.sequences[sequence] = None

    def _finish_prefill(self, flight: Flight, sequence: Sequence, stopped: Stopped) -> list[Sequence]:
        """The last chunk of a prompt gives every sequence of the request a token; returns these sequences."""
        del self.prefilling[sequence]
        started = self._fork(sequence) if sequence.num_forks else [sequence]
        for each in started:
            each.add_tokens(1)
            if each.num_tokens < each.end_length and each not in stopped:
                self.decodes.join(each)
            else:
                self._end(flight, each, stopped)
        return started

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """Make the other sequences of a request, which share the blocks of the prompt; returns all of them."""
        self._blocks.name_content(sequence, sequence.num_computed_tokens)
        forks = [sequence.fork() for _ in range(sequence.num_forks)]
        self.num_reserved -= len(forks)
        for fork in forks:
            self._blocks.share(fork)
            self.sequences[fork] = None
        self.forked |= dict.fromkeys([sequence, *forks])
        return [sequence, *forks]

    def _end(self, flight: Flight, sequence: Sequence, stopped: Stopped = NOBODY) -> None:
        """`sequence`, in no state now, has got its last token; what it generated past a stop is discarded."""
        sequence.leave(SequenceStatus.FINISHED)
        if self.forked:
            self.forked.pop(sequence, None)
        if sequence in stopped:
            sequence.add_tokens(-stopped[sequence])
        self.ending[sequence] = None
        flight.ended.append(sequence)

    def _in_order_of_release(self, flight: Flight, stopped: Stopped) -> list[Sequence]:
        """Who ended with a plan, in order of admission, which decides whose blocks are taken first."""
        ended = flight.ended
        if len(ended) < 2 or not (stopped or any(s.status is SequenceStatus.FINISHED for s in flight.started)):
            return ended  # decodes that reached their length, which are in order already
        members = set(ended)
        return [sequence for sequence in self.sequences if sequence in members]

    def _stop_late(self, flight: Flight, sequence: Sequence, num_discarded: int) -> None:
        """A stop is found when the next step is planned already, with one slot for the sequence that nobody needs."""
        if sequence.status is SequenceStatus.WAITING:  # preempted meanwhile
            self._waiting.remove(sequence)
            self._blocks.drop_host_blocks(sequence)
            sequence.status = SequenceStatus.FINISHED
            sequence.add_tokens(-num_discarded)
            flight.ended.append(sequence)
        elif sequence.status is SequenceStatus.FINISHED:  # it got its last token with the same plan
            sequence.add_tokens(-num_discarded)
        else:
            self._leave(sequence, SequenceStatus.FINISHED)
            self._end(flight, sequence, {sequence: num_discarded})

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        if sequence in self.decodes.sequences:
            self.decodes.remove(sequence)
        else:
            for state in (self.prefilling, self.parked, self.paused, self.ending):
                state.pop(sequence, None)
        self.num_reserved -= sequence.num_forks
        self.forked.pop(sequence, None)
        sequence.leave(status)

    def _release(self, sequence: Sequence) -> None:
        del self.sequences[sequence]
        self._blocks.release(sequence)
        if sequence.status is not SequenceStatus.WAITING:
            self._blocks.drop_host_blocks(sequence)
        self._waiting.head_blocked = False

    def check_integrity(self) -> None:
        """Prove that every sequence is in the one state that its tokens say; raises AssertionError."""
        self.decodes.check_integrity()
        states = [self.prefilling, self.decodes.sequences, self.paused, self.parked, self.ending]
        assert sum(map(len, states)) == len(self.sequences), "a sequence is in two states or in none"
        assert set().union(*states) == self.sequences.keys()
        assert self.num_reserved == sum(s.num_forks for s in self.sequences)
        assert self.flights or not self.ending
        for sequence in self.sequences:
            assert (sequence.status is SequenceStatus.FINISHED) == (sequence in self.ending)
            assert (sequence.status is SequenceStatus.PARKED) == (sequence in self.parked)
