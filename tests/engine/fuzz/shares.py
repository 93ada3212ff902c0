"""What `policy=fair` counts as served, against a plain count."""

from __future__ import annotations

from typing import Any

from engine.core.admission.tenant_queue import TenantQueue
from engine.core.planning.policy import Policy
from engine.core.policies.fair import Fair
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence
from tests.compiled import IS_COMPILED


class Shares:
    """The service of every tenant, counted anew whenever the queue takes a turn: what its requests were given, and what
    it was lifted by when it came to wait. It is between the policy and its queue."""

    def __init__(self, options: SchedulerOptions, policy: Policy) -> None:
        assert isinstance(policy, Fair)
        self.requests: list[Request] = []  # all that were ever added
        self._queue = policy._queue
        policy._queue = self  # type: ignore[assignment]
        self._input_weight = options.options.get("input_weight", 1)
        self._output_weight = options.options.get("output_weight", 2)
        self._lifts: dict[int, int] = {}
        self._newcomers = self._queue._newcomers if IS_COMPILED else _watched(self._queue)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def _service(self, tenant: int) -> int:
        admitted = [r for r in self.requests if r.tenant == tenant and r.first_scheduled_time is not None]
        prompts, outputs = sum(r.num_prompt_tokens for r in admitted), sum(r.num_output_tokens for r in admitted)
        return self._input_weight * prompts + self._output_weight * outputs + self._lifts.get(tenant, 0)

    def turn(self) -> None:
        queue, newcomers = self._queue, self._newcomers
        expected = {tenant: self._service(tenant) for tenant in queue.served}
        others = [tenant for tenant in queue.heaps if tenant not in newcomers] or [queue._last]
        for tenant in (each for each in newcomers if each in queue.heaps):
            least = min(expected.get(other, 0) for other in others)
            self._lifts[tenant] = self._lifts.get(tenant, 0) + max(0, least - expected[tenant])
            expected[tenant] = max(expected[tenant], least)
            others = others if others[0] in queue.heaps else [tenant]
        queue.turn()
        newcomers.clear()
        assert queue.served == expected, "the service of a tenant is miscounted"
        tops = [(expected[tenant], heap[0]) for tenant, heap in queue.heaps.items()]
        assert not tops or queue.head is min(tops)[1][-1], "the head is not of the least served tenant, or came later"


def _watched(queue: TenantQueue) -> dict[int, None]:
    """Tenants that come to wait from now on, in order; whoever reads them clears them."""
    newcomers: dict[int, None] = {}
    push, pop = queue.push, queue.pop

    def noted_push(sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if all(other.request.tenant != tenant for other in queue):
            newcomers.pop(tenant, None)
            newcomers[tenant] = None
        push(sequence)

    def checked_pop() -> Sequence:
        assert newcomers.keys().isdisjoint(queue.heaps), "a tenant that came is not yet compared"
        sequence = pop()
        assert queue._last == sequence.request.tenant, "the tenant that was admitted last is another one"
        return sequence

    queue.push, queue.pop = noted_push, checked_pop  # type: ignore[method-assign]
    return newcomers
