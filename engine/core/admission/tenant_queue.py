"""A waiting queue that shares fairly: its head is of the tenant that was served the least.

It is the virtual token counter of Sheng et al. 2024, "Fairness in Serving Large Language Models": of two tenants who
both wait all the time, neither is served more than the other by more than 2 * max(input_weight * longest prompt,
output_weight * tokens that fit into the pool).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from engine.core.admission.waiting_queue import Heap, QueueOrder, WaitingQueue
from engine.core.sequence import Sequence


class TenantQueue(WaitingQueue):
    """Heaps of those that wait, one per tenant; that of the least served tenant has the head.

    A prompt counts as served when it is admitted, and a generated token when `turn` is called next. A tenant that comes
    to wait is lifted to the least served one that waits, or to the last one that did: idle time earns nothing.

    Attributes:
        heaps: those of the tenants that wait, none of them empty.
        served: what each tenant was served, in weighted tokens.
    """

    def __init__(self, order: QueueOrder, input_weight: int, output_weight: int) -> None:
        super().__init__(order)
        self.heaps: dict[int, Heap] = {}
        self.served: dict[int, int] = {}
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._counted: dict[Sequence, int] = {}  # of each that runs, how many generated tokens are in `served`
        self._newcomers: dict[int, None] = {}  # tenants that came to wait since the last turn
        self._last = 0  # the tenant that was admitted last

    def __len__(self) -> int:
        return sum(map(len, self.heaps.values()))

    def __iter__(self) -> Iterator[Sequence]:
        others = (heap for heap in self.heaps.values() if heap is not self._heap)
        return (entry[-1] for entry in chain(self._heap, *others))

    @property
    def has_newcomers(self) -> bool:
        """Whether a tenant came to wait since the last turn."""
        return bool(self._newcomers)

    def turn(self) -> None:
        """Count what was generated, and let the least served tenant have the head; of equals, who came first.

        Tenants that came to wait are lifted here and not before: when a step is planned, all tokens are counted.
        """
        for sequence in self._counted:
            self._count(sequence)
        others = [tenant for tenant in self.heaps if tenant not in self._newcomers] or [self._last]
        for tenant in self._newcomers:
            least = min(self.served.get(other, 0) for other in others)
            self.served[tenant] = max(self.served[tenant], least)
            if others[0] not in self.heaps:
                others = [tenant]
        self._newcomers.clear()
        self._choose()

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self.heaps:
            self._newcomers[tenant] = None
            self.served.setdefault(tenant, 0)
        self._heap = self.heaps.setdefault(tenant, [])
        super().push(sequence)
        self._choose()

    def pop(self) -> Sequence:
        sequence = super().pop()
        self._last = sequence.request.tenant
        if not sequence.num_preemptions:
            self.served[self._last] += self._input_weight * sequence.request.num_prompt_tokens
        self._forget_empty(self._last)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._heap = self.heaps[tenant]
        super().remove(sequence)
        self.heaps[tenant] = self._heap
        self._forget_empty(tenant)

    def on_seat(self, sequence: Sequence) -> None:
        self._counted[sequence] = sequence.num_output_tokens

    def on_release(self, sequence: Sequence) -> None:
        super().on_release(sequence)
        self._count(sequence)
        del self._counted[sequence]

    def _count(self, sequence: Sequence) -> None:
        num_new = sequence.num_output_tokens - self._counted[sequence]
        self._counted[sequence] += num_new
        self.served[sequence.request.tenant] += self._output_weight * num_new

    def _forget_empty(self, tenant: int) -> None:
        if not self.heaps[tenant]:
            del self.heaps[tenant]
            self._newcomers.pop(tenant, None)
        self._choose()

    def _choose(self) -> None:
        """Let the heap of the least served tenant be the one whose top is the head."""
        least: Heap = []
        if self.heaps:
            least = min(self.heaps.items(), key=lambda item: (self.served[item[0]], item[1][0]))[1]
        if least is not self._heap:
            self._heap = least
            self.unblock_head()

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        super().check_integrity(running)
        assert self._counted.keys() == set(running) and all(self.heaps.values())
        assert all(s.request.tenant == tenant for tenant, heap in self.heaps.items() for *_, s in heap)
        assert not self.heaps or any(heap is self._heap for heap in self.heaps.values())
