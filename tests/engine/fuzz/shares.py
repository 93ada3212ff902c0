"""What `policy=fair` counts as served, against a plain count."""

from __future__ import annotations

from engine.core.admission.tenant_queue import TenantQueue
from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence


class Shares:
    """The service of every tenant, counted anew whenever the queue takes a turn: what its requests were given, and what
    it was lifted by when it came to wait."""

    def __init__(self, options: SchedulerOptions, queue: WaitingQueue) -> None:
        assert isinstance(queue, TenantQueue)
        self.requests: list[Request] = []  # all that were ever added
        self._queue = queue
        self._input_weight = options.options.get("input_weight", 1)
        self._output_weight = options.options.get("output_weight", 2)
        self._lifts: dict[int, int] = {}
        self._newcomers: dict[int, None] = {}
        self._last = 0  # the tenant that was admitted last
        self._turn, queue.turn = queue.turn, self._checked_turn  # type: ignore[method-assign]
        self._push, queue.push = queue.push, self._noted_push  # type: ignore[method-assign]
        self._pop, queue.pop = queue.pop, self._noted_pop  # type: ignore[method-assign]

    def _noted_push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if all(other.request.tenant != tenant for other in self._queue):
            self._newcomers.pop(tenant, None)
            self._newcomers[tenant] = None
        self._push(sequence)

    def _noted_pop(self) -> Sequence:
        assert self._newcomers.keys().isdisjoint(self._queue.heaps), "a tenant that came is not yet compared"
        sequence = self._pop()
        self._last = sequence.request.tenant
        return sequence

    def _service(self, tenant: int) -> int:
        admitted = [r for r in self.requests if r.tenant == tenant and r.first_scheduled_time is not None]
        prompts, outputs = sum(r.num_prompt_tokens for r in admitted), sum(r.num_output_tokens for r in admitted)
        return self._input_weight * prompts + self._output_weight * outputs + self._lifts.get(tenant, 0)

    def _checked_turn(self) -> None:
        queue, newcomers = self._queue, self._newcomers
        expected = {tenant: self._service(tenant) for tenant in queue.served}
        others = [tenant for tenant in queue.heaps if tenant not in newcomers] or [self._last]
        for tenant in (each for each in newcomers if each in queue.heaps):
            least = min(expected.get(other, 0) for other in others)
            self._lifts[tenant] = self._lifts.get(tenant, 0) + max(0, least - expected[tenant])
            expected[tenant] = max(expected[tenant], least)
            others = others if others[0] in queue.heaps else [tenant]
        self._turn()
        newcomers.clear()
        assert queue.served == expected, "the service of a tenant is miscounted"
        tops = [(expected[tenant], heap[0]) for tenant, heap in queue.heaps.items()]
        assert not tops or queue.head is min(tops)[1][-1], "the head is not of the least served tenant, or came later"
