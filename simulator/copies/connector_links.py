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

    A load begins with the step that asks for it, when what that step flushes has been stored. A store begins with the
    next step, as in vLLM, so that it does not delay the tokens of its own. A step waits for what it flushes. Where
    nothing can be planned, vLLM runs steps of nothing: they take no time here.

    Args:
        block_bytes: of a block, as the device has it.
    """

    def __init__(self, scheduler: Scheduler, block_bytes: int, bytes_per_s: float) -> None:
        assert scheduler.storing is not None and scheduler.blocks.connector is not None
        self._storing, self._connector = scheduler.storing, scheduler.blocks.connector
        self._out, self._in = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        self._step_at = 0  # when the last step began
        self._asked: list[Job] = []  # by the step that is planned and has not begun
        self._stores: list[Job] = []  # of steps that have begun
        self._flushed: set[int] = set()  # numbers of jobs
        self._ends: list[tuple[int, int]] = []  # a heap of times and numbers of jobs
        self._end_of: dict[int, int] = {}
        self._told: list[Sequence] = []  # by the planned step, that no more is stored of them
        self._ended: list[Sequence] = []  # by steps that have begun

    @property
    def next_ns(self) -> int:
        """When the next job ends; right after a step began of which jobs begin with the next one; or at once, if jobs
        were asked for and no step was planned."""
        self._take()
        next_ns = self._ends[0][0] if self._ends else NEVER
        if self._stores or self._ended:
            next_ns = min(next_ns, self._step_at + 1)
        return min(next_ns, self._connector.jobs.now) if self._waits_for_no_step else next_ns

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """How long the step of a plan must wait for what it flushes, in ns."""
        self._take()
        wait_ns = self._begin_step(now_ns)
        self._flushed.clear()
        return wait_ns

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        """Report the jobs that are done; returns who is told of it."""
        self._take()
        ended: list[Sequence] = []
        if self._step_at < until_ns:
            self._begin_stores(until_ns)
            ended, self._ended = self._ended, ended
        if self._waits_for_no_step:
            self._begin_step(until_ns)
        done = []
        while self._ends and self._ends[0][0] <= until_ns:
            number = heapq.heappop(self._ends)[1]
            del self._end_of[number]
            if number in self._connector.jobs.under_way:
                done.append(number)
        return self._connector.report(done, ended)

    @property
    def _waits_for_no_step(self) -> bool:
        return bool(self._asked or self._told) and not self._storing.planned

    def _take(self) -> None:
        orders = self._storing.take_orders()
        self._flushed |= orders.flushed
        self._asked += orders.jobs
        self._told += orders.ended

    def _begin_step(self, now_ns: int) -> int:
        """The planned step, or one of nothing, begins; returns how long it waits for what it flushes, in ns."""
        self._begin_stores(now_ns)
        asked, self._asked = self._asked, []
        for job in asked:
            if job.number in self._flushed:
                self._note(job, self._out.copy(len(job.blocks), now_ns))
            elif job.is_store:
                self._stores.append(job)
        flushed_ns = max([now_ns, *(self._end_of[number] for number in self._flushed if number in self._end_of)])
        for job in asked:
            if not job.is_store:
                self._note(job, max(self._in.copy(len(job.blocks), flushed_ns), flushed_ns + 1))
        self._ended += self._told
        self._told = []
        self._step_at = now_ns
        return flushed_ns - now_ns

    def _begin_stores(self, now_ns: int) -> None:
        stores, self._stores = self._stores, []
        for job in stores:
            self._note(job, self._out.copy(len(job.blocks), now_ns))

    def _note(self, job: Job, end: int) -> None:
        self._end_of[job.number] = end
        heapq.heappush(self._ends, (end, job.number))
