"""Hand-over: the KV of a prompt goes from the server that computed it to the one that decodes, over a network.

    prefill server   | prompt in chunks, one token |··· blocks held ···|
                                                    └─ request_ns ─┐   ▲ copied
    decode server                              waits for blocks ·· | parked: blocks are written | last token, decodes

As vLLM's NIXL connector has it: the decode server pulls, once it has blocks for the whole prompt; what it has cached
itself is not copied; it computes the last token of the prompt again, and samples the first token that the client sees
from that. The other side holds its blocks until they are copied.

By layers, as vLLM's P2pNcclConnector has it: the server for prompts sends each layer of all of a prompt's blocks when
the step of its last chunk has computed that layer, into a buffer on the other side, which is not limited here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Literal

from engine.core.plan import StepPlan
from engine.core.sequence import Request, Sequence
from simulator.arrivals import NEVER
from simulator.copies.transfers import Link, TransferEngine

Role = Literal["serve", "prefill", "decode"]
"""What a server does of a request: all of it, its prompt, or the rest."""


@dataclass(frozen=True)
class Network:
    """What connects the servers.

    Attributes:
        bytes_per_s: between a GPU and those of other servers, in each direction.
        latency_ns: what a transfer takes beside its bytes, until it is noticed that the last of them has come.
        request_ns: from the end of a prompt on one server until the request is in the queue of the other.
        by_layers: whether a prompt's KV is sent while its last chunk is computed; else it is pulled afterwards.
    """

    bytes_per_s: float
    latency_ns: int = 0
    request_ns: int = 0
    by_layers: bool = False


def prompt_of(request: Request) -> Request:
    """The part of a request that a prefill server does."""
    (sequence,) = request.sequences
    return Request(
        request.request_id,
        request.num_prompt_tokens,
        1,
        request.arrival_time,
        token_ids=sequence.token_ids,
        block_hashes=sequence.hashes,
        priority=request.priority,
        tenant=request.tenant,
        session=request.session,
        deadline=request.deadline,
        reads_prefix_cache=request.reads_prefix_cache,
        decodes_elsewhere=True,
    )


def note_prompt(request: Request, prompt: Request) -> None:
    """Let the record of a request say what became of its prompt on the other server."""
    (sequence,), (computed,) = request.sequences, prompt.sequences
    request.first_scheduled_time = prompt.first_scheduled_time
    sequence.num_cached_tokens, sequence.cached_by_tier = computed.num_cached_tokens, computed.cached_by_tier
    sequence.num_recomputed_tokens, sequence.num_preemptions = computed.num_recomputed_tokens, computed.num_preemptions


class Exchange:
    """Begins the transfers that are asked for at the same time in the order of their requests, whichever server asked
    first.

    Args:
        after_plans: calls a function once all servers that plan at the present time have planned.
    """

    def __init__(self, after_plans: Callable[[Callable[[], None]], None]) -> None:
        self._after_plans = after_plans
        self._asked: list[tuple[int, Callable[[], None]]] = []

    def ask(self, request_id: int, begin: Callable[[], None]) -> None:
        if not self._asked:
            self._after_plans(self._begin)
        self._asked.append((request_id, begin))

    def _begin(self) -> None:
        asked, self._asked = sorted(self._asked, key=itemgetter(0)), []
        for _, begin in asked:
            begin()


class Port:
    """A server's link to the network, which moves one sequence after the other, and its link to other memories.

    Args:
        block_bytes: of a block on one rank; each rank has a link of its own.
        inner: moves blocks between the tiers of the server.
        num_layers: of the model.

    Attributes:
        next_ns: when the next transfer is done, NEVER where none is under way.
        on_change: called when `next_ns` comes to be earlier; a driver's.
        exchange: of the fleet.
        num_blocks: blocks that were copied.
    """

    def __init__(self, network: Network, block_bytes: int, inner: TransferEngine, num_layers: int) -> None:
        self._link = Link(block_bytes, network.bytes_per_s)
        self._latency_ns = network.latency_ns
        self._by_layers = network.by_layers
        self._num_layers = num_layers
        self._inner = inner
        self._origins: dict[int, tuple[Port, Sequence]] = {}  # by request
        self._received: dict[int, int] = {}  # by request whose KV was sent by layers, when it is here
        self._moving: list[tuple[int, int, Sequence]] = []  # a heap by the time when they are copied
        self._num_moved = 0
        self.on_change: Callable[[], None] = lambda: None
        self.exchange: Exchange
        self.num_blocks = 0

    @property
    def next_ns(self) -> int:
        return min(self._moving[0][0] if self._moving else NEVER, self._inner.next_ns)

    def expect(self, request: Request, origin: Port, sequence: Sequence, began_ns: int, ended_ns: int) -> None:
        """The KV of the prompt of a request that comes to this server is in the blocks of a `sequence` elsewhere, where
        the last of it was computed between these times."""
        self._origins[request.request_id] = origin, sequence
        if self._by_layers:
            self.exchange.ask(request.request_id, partial(self.receive, request.request_id, began_ns, ended_ns))

    def start(self, plan: StepPlan, now_ns: int) -> int:
        pulled = [sequence for sequence in plan.parked if sequence.request_id in self._origins]
        if not pulled:
            return self._inner.start(plan, now_ns)
        for sequence in pulled:
            self.exchange.ask(sequence.request_id, partial(self.pull, sequence, now_ns))
        return 0

    def receive(self, request_id: int, began_ns: int, ended_ns: int) -> None:
        """The other side sends all of a prompt's blocks, layer by layer."""
        origin, source = self._origins[request_id]
        num_blocks = len(source.block_table)
        done_ns = max(port._link.stream(num_blocks, port._num_layers, began_ns, ended_ns) for port in (origin, self))
        self._received[request_id] = done_ns + self._latency_ns
        self.num_blocks += num_blocks
        origin._await(source, done_ns + self._latency_ns)

    def pull(self, sequence: Sequence, now_ns: int) -> None:
        """Copy the blocks that are not cached here, or wait until all were sent."""
        origin, source = self._origins.pop(sequence.request_id)
        if self._by_layers:
            self._await(sequence, max(self._received.pop(sequence.request_id), now_ns + 1))
            return
        num_blocks = len(sequence.block_table) - sequence.num_registered_blocks
        done_ns = max(port._link.copy(num_blocks, now_ns) for port in (origin, self))
        done_ns = max(done_ns, now_ns + 1) + self._latency_ns
        self.num_blocks += num_blocks
        for port, moved in ((origin, source), (self, sequence)):
            port._await(moved, done_ns)

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = self._inner.pop_ready(until_ns) if self._inner.next_ns <= until_ns else []
        while self._moving and self._moving[0][0] <= until_ns:
            ready.append(heapq.heappop(self._moving)[-1])
        return ready

    def _await(self, sequence: Sequence, done_ns: int) -> None:
        heapq.heappush(self._moving, (done_ns, self._num_moved, sequence))
        self._num_moved += 1
        self.on_change()
