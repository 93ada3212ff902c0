"""What the planning of a step tells the connector, and what comes of it for who copies."""

from __future__ import annotations

from collections import abc
from functools import partial

from engine.core.kv.tiers.tier import DEVICE, HOST, Transfer
from engine.core.offloading.connector import Connector
from engine.core.offloading.jobs import Job, Orders
from engine.core.plan import StepDraft
from engine.core.running.registering import num_known
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


class Storing:
    """Ends the planning of steps where what they complete is stored on the host.

    Args:
        ready: as `Scheduler.ready`.

    Attributes:
        planned: the sequences of the last step, with the tokens that are computed after it.
    """

    def __init__(self, connector: Connector, ready: abc.Callable[[Sequence], None]) -> None:
        self._connector = connector
        self._ready = ready
        self._flushed: list[Orders] = []  # of passes before the last one
        self.planned: dict[Sequence, int] = {}

    def end_pass(self, draft: StepDraft, running: RunningSet) -> None:
        """A step is planned, or nothing can be."""
        draft.is_single = True  # what each step completes is stored with it
        self._connector.jobs.now = draft.now
        chunks = {chunk.sequence: chunk.start + chunk.num_tokens for chunk in draft.prefills}
        decodes = running.decodes.sequences if draft.num_decodes else ()
        self.planned = {
            sequence: chunks.get(sequence) or num_known(running, sequence)
            for sequence in running.sequences
            if sequence in chunks or sequence in decodes
        }
        self._connector.end_plan(self.planned, draft.admitted, partial(num_known, running))
        if self.planned:
            for job in self._connector.jobs.pop_unplanned():
                draft.transfers += _transfers(job, self._connector.rules.chunk_blocks)

    def flush(self) -> None:
        """Nobody was served: what the planned step would wait for is stored now, so that the blocks of the victims are
        free at once."""
        orders = self._connector.jobs.take_orders()
        self._flushed.append(orders)
        self.report(sorted(orders.flushed), orders.ended)

    def report(self, done: list[int], ended: abc.Sequence[Sequence]) -> None:
        """These jobs of the connector are done, in this order, and `Orders.ended` is known."""
        for sequence in self._connector.report(done, ended):
            self._ready(sequence)

    def take_orders(self) -> Orders:
        """What the last plan, or the attempt at one, asks of who copies between device and host."""
        orders = self._connector.jobs.take_orders()
        jobs = [job for each in self._flushed for job in each.jobs]
        self._flushed.clear()
        return orders._replace(jobs=jobs + orders.jobs)


def _transfers(job: Job, chunk_blocks: int) -> list[Transfer]:
    """The copy of each block; the host's blocks are numbered by chunks of `chunk_blocks`."""
    slots = [place * chunk_blocks + i for place in job.places for i in range(chunk_blocks)]
    pairs = zip(job.blocks, slots[-len(job.blocks) :], strict=True)
    if job.is_store:
        return [Transfer(DEVICE, block, HOST, slot) for block, slot in pairs]
    return [Transfer(HOST, slot, DEVICE, block) for block, slot in pairs]
