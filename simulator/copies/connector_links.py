"""How long the jobs of vLLM's connector take: the links between a device and its host, beside the steps."""

from __future__ import annotations

import heapq

from engine.core.offloading.jobs import Job
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from simulator.arrivals import NEVER
from simulator.copies.transfers import Link


class ConnectorLinks:
    """Carries out the jobs of a scheduler's connector, one after the other in each direction.

    A load begins when the step is planned that asks for it. A store begins with the next step, as in vLLM, so that it
    does not delay the tokens of its own. A step waits for what it flushes.

    Args:
        block_bytes: of a block, as the device has it.
    """

    def __init__(self, scheduler: Scheduler, block_bytes: int, bytes_per_s: float) -> None:
        assert scheduler.storing is not None and scheduler.blocks.connector is not None
        self._storing, self._connector = scheduler.storing, scheduler.blocks.connector
        self._out, self._in = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        self._stores: list[Job] = []  # that have not begun
        self._flushed: set[int] = set()  # numbers of jobs
        self._ends: list[tuple[int, int]] = []  # a heap of times and numbers of jobs
        self._ended: list[Sequence] = []  # of which no more is stored
        self._ended_at = 0
        self._end_of: dict[int, int] = {}

    @property
    def next_ns(self) -> int:
        """When the next job ends; or right after a step that asked for stores, which begin then."""
        self._take()
        next_ns = self._ends[0][0] if self._ends else NEVER
        if self._stores:
            next_ns = min(next_ns, self._stores[0].asked_at + 1)
        return min(next_ns, self._ended_at + 1) if self._ended else next_ns

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """How long the step of a plan must wait for what it flushes, in ns."""
        self._take()
        if not self._flushed:
            return 0
        self._begin_stores(now_ns)
        ends = [self._end_of[number] for number in self._flushed if number in self._end_of]
        self._flushed.clear()
        return max([now_ns, *ends]) - now_ns

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        """Report the jobs that are done; returns who is told of it."""
        self._take()
        if self._stores and self._stores[0].asked_at < until_ns:
            self._begin_stores(until_ns)
        done = []
        while self._ends and self._ends[0][0] <= until_ns:
            number = heapq.heappop(self._ends)[1]
            del self._end_of[number]
            if number in self._connector.jobs.under_way:
                done.append(number)
        ended: list[Sequence] = []
        if self._ended and self._ended_at < until_ns:
            ended, self._ended = self._ended, []
        return self._connector.report(done, ended)

    def _take(self) -> None:
        orders = self._storing.take_orders()
        self._flushed |= orders.flushed
        if orders.ended and not self._ended:
            self._ended_at = self._connector.jobs.now
        self._ended += orders.ended
        for job in orders.jobs:
            if job.is_store:
                self._stores.append(job)
            else:
                end = max(self._in.copy(len(job.blocks), job.asked_at), job.asked_at + 1)
                self._note(job, end)

    def _begin_stores(self, now_ns: int) -> None:
        stores, self._stores = self._stores, []
        for job in stores:
            self._note(job, self._out.copy(len(job.blocks), now_ns))

    def _note(self, job: Job, end: int) -> None:
        self._end_of[job.number] = end
        heapq.heappush(self._ends, (end, job.number))
