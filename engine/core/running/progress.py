"""What a plan brings: its tokens as soon as they are certain, its times and its ends when it has run."""

from __future__ import annotations

from collections import abc
from operator import attrgetter

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.flight import NOBODY, Flight, Stopped, Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.running.forks import fork
from engine.core.running.padding import drop, end_batch, pad_or_release
from engine.core.running.registering import num_known, register_filled, register_verified
from engine.core.running.running_set import RunningSet
from engine.core.sequence import FINISHED, Sequence, SequenceStatus

_ADMISSION = attrgetter("admission")


class Progress:
    """Accounts for the plans of one lane.

    A plan is *advanced* when what it is certain to bring is counted, its tokens, and *settled* when it has run. Between
    the two, when the next step is planned while this one runs, a sequence that gets its last token is ending: it keeps
    its seat and its blocks.

    Args:
        pads_to: most tokens of the padding rows of finished sequences; None for no padding.
        finds_verified: as `Policy` has it.
    """

    def __init__(
        self,
        running: RunningSet,
        blocks: BlockManager,
        waiting: WaitingQueue,
        pads_to: int | None,
        *,
        finds_verified: bool = False,
    ) -> None:
        self._running = running
        self._blocks = blocks
        self._waiting = waiting
        self._pads_to = pads_to
        self._has_drafts = running.decodes.tokens_per_decode > 1
        self._finds_verified = finds_verified and not running.lag and self._has_drafts

    def advance(self, flight: Flight, stopped: Stopped = NOBODY, drafts: Verified | None = None) -> None:
        """Count the tokens of a plan; `stopped` tells what is known of stop conditions, as in `Scheduler.commit`."""
        running = self._running
        plan = flight.plan
        flight.is_advanced = True
        if plan.num_decodes:
            running.num_decode_steps += plan.num_steps
            if running.decodes.findable:
                for ahead in range(1, plan.num_steps):
                    register_filled(running, self._blocks, ahead, stopped)
            ended = running.decodes.advance(plan.num_steps, drafts)
            flight.drafts = running.decodes.drafts
            if self._has_drafts and running.lag:
                flight.late = [*running.decodes.late]
                for sequence in ended:
                    self._register_known(sequence)
            if stopped:
                for sequence in stopped:
                    if sequence in running.decodes.sequences:
                        running.decodes.remove(sequence)
                        ended.append(sequence)
            for sequence in ended:
                if sequence in running.padding:
                    drop(running, sequence)
                else:
                    self._end(flight, sequence, stopped)
        if plan.prefills:
            self._advance_prefills(flight, stopped)
        if running.paused:
            running.resume()
        if self._has_drafts:
            for sequence in [*running.decodes.resting]:
                self._register_known(sequence)
                running.pause(sequence)
                flight.victims = [*flight.victims, sequence]
        if running.returning:
            for sequence in running.returning:
                if sequence in running.parked:
                    running.ready(sequence)
            running.returning.clear()
        if running.padding:
            end_batch(running)

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out, and the padding of its batch if nobody else is left of that."""
        if self._running.lag and sequence in self._running.decodes.sequences:
            self._register_known(sequence)
        self._running.abort(sequence, num_known(self._running, sequence))
        if self._running.padding:
            end_batch(self._running)

    def _register_known(self, sequence: Sequence) -> None:
        """Where steps are planned ahead, register what is computed of the tokens that a sequence had before the step
        under way, with which it leaves the decodes."""
        if self._has_drafts and sequence.has_content:  # without drafts the planning has registered it
            self._blocks.register(sequence, self._running.decodes.num_found(sequence) - 1)

    def _advance_prefills(self, flight: Flight, stopped: Stopped) -> None:
        self._waiting.unblock_head()  # what was computed may shorten the prompt of the first in the queue
        started: list[Sequence] = []
        for chunk in flight.plan.prefills:
            sequence = chunk.sequence
            if sequence not in self._running.prefilling:  # aborted meanwhile
                continue
            sequence.set_computed(chunk.start + chunk.num_tokens)
            if chunk.is_last:
                started += self._finish_prefill(flight, sequence, stopped)
        flight.started = started

    def settle(self, flight: Flight, now: int, stopped: Stopped, drafts: Verified | None) -> list[int]:
        """A plan has run: note the times of its tokens and release who ended; returns gaps around preemptions."""
        running = self._running
        for sequence in flight.freed:
            running.ready(sequence)
        if not flight.is_advanced:
            self.advance(flight, stopped, drafts)
            stopped = NOBODY
        if flight.late or stopped:
            for sequence, num_discarded in {**dict.fromkeys(flight.late, 0), **stopped}.items():
                self._stop_late(flight, sequence, num_discarded)
        if self._waiting.coming:
            self._waiting.coming.difference_update(flight.started, flight.victims)
        resumed_gaps: list[int] = []
        for sequence in flight.started:
            if sequence.request.first_token_time is None:
                sequence.request.first_token_time = now
            elif sequence.last_token_time is not None:
                resumed_gaps.append(now - sequence.last_token_time)
            sequence.last_token_time = now
        if flight.plan.num_decodes:
            running.last_decode_time = now
            if flight.victims:
                for sequence in flight.victims:
                    sequence.last_token_time = now
        ended = flight.ended
        if self._blocks.finds_late and flight.started:
            if self._blocks.stores_prompts_first:
                self._store_prompts(flight.started)
            else:
                ended = [*dict.fromkeys([*ended, *flight.started])]
        if len(ended) > 1:
            ended = sorted(ended, key=_ADMISSION)  # it decides whose blocks are taken first
        if self._finds_verified:
            register_verified(running, self._blocks, ended)
        for sequence in ended:
            if self._blocks.finds_late and sequence in running.decodes.sequences:
                self._blocks.checkpoint(sequence, sequence.num_tokens - 1)
            if sequence in running.ending:
                del running.ending[sequence]
                # What drafts of the last step brought cannot be found unless steps are planned ahead, and each step has
                # registered what came before.
                if sequence.has_content and (running.lag or running.decodes.tokens_per_decode == 1):
                    self._blocks.register(sequence, sequence.num_tokens - 1)
                if self._pads_to is None:
                    running.release(sequence)
                else:
                    pad_or_release(running, self._blocks, sequence, self._pads_to)
        if running.padding:
            end_batch(running)
        return resumed_gaps

    def _store_prompts(self, started: abc.Iterable[Sequence]) -> None:
        for sequence in started:
            if sequence in self._running.sequences:
                self._blocks.checkpoint(sequence, sequence.num_tokens - 1)

    def _finish_prefill(self, flight: Flight, sequence: Sequence, stopped: Stopped) -> list[Sequence]:
        """The last chunk of a prompt gives every sequence of the request a token; returns these sequences."""
        running = self._running
        del running.prefilling[sequence]
        started = fork(running, self._blocks, sequence) if sequence.num_forks else [sequence]
        for each in started:
            each.add_tokens(1)
            if each.num_tokens < each.end_length and each not in stopped:
                if flight.padded and sequence in flight.padded:
                    running.decodes.join(each, is_padded=True)
                else:
                    running.decodes.join(each)
            else:
                self._end(flight, each, stopped)
        return started

    def _end(self, flight: Flight, sequence: Sequence, stopped: Stopped = NOBODY) -> None:
        """`sequence`, in no state now, has got its last token; what it generated past a stop is discarded."""
        running = self._running
        sequence.leave(FINISHED)
        if running.forked:
            running.forked.pop(sequence, None)
        if sequence in stopped:
            sequence.add_tokens(-stopped[sequence])
        running.ending[sequence] = None
        flight.ended.append(sequence)

    def _stop_late(self, flight: Flight, sequence: Sequence, num_discarded: int) -> None:
        """A stop is found when the next step is planned already, with one slot for the sequence that nobody needs."""
        if sequence.status is SequenceStatus.WAITING:  # preempted meanwhile
            self._waiting.remove(sequence)
            self._blocks.drop(sequence)
            sequence.status = SequenceStatus.FINISHED
            sequence.add_tokens(-num_discarded)
            if self._blocks.connector is not None:
                self._blocks.connector.end(sequence)
            flight.ended.append(sequence)
        elif sequence.has_ended:  # it ended with the same plan
            sequence.add_tokens(-num_discarded)
        else:
            self._running.leave(sequence, SequenceStatus.FINISHED)
            self._end(flight, sequence, {sequence: num_discarded})
