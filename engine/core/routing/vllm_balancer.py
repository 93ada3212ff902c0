"""The least loaded rank, as vLLM spreads requests over data-parallel ranks (`DPLBAsyncMPClient` in its
v1/engine/core_client.py).

vLLM hears of queues and batches from time to time (`view_delay_ms` in conf/router/vllm_balancer.yaml), and adds what it
has sent since to the queues. When ranks come or go in between, those that stay keep their counts, and new ones have
none.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request

_WAITING = 4
_PRESSURE, _FREE_USE = 6.0, 0.5


@dataclass(frozen=True)
class VllmBalancerOptions:
    """Settings of the rule.

    Attributes:
        counts_in_flight: a rank has at least as many requests as it was sent and has not ended, its queue weighs more
            the more of its KV cache beyond a half is used, and ranks take turns to be the first among equals, as in
            0.27 and since; or a waiting request counts as four running ones, and the first among equals is always the
            same, as in 0.19.
    """

    counts_in_flight: bool = True


class _Told(NamedTuple):
    """What a rank tells of itself."""

    num_waiting: int
    num_running: int
    use: float


class VllmBalancer(BaseRouter):
    """Of several with the lowest score, the first."""

    options_type = VllmBalancerOptions

    def __init__(self, options: VllmBalancerOptions) -> None:
        super().__init__(options)
        self._told: dict[int, _Told] = {}  # by the number of the server
        self._sent: dict[int, int] = {}  # since then
        self._start = 0

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        told = {each.number: _Told(each.num_waiting, each.num_running, self._use(each)) for each in servers}
        if any(self._told.get(number, counts) != counts for number, counts in told.items()):
            self._sent = {}
        self._told = told
        self._sent = {number: self._sent.get(number, 0) for number in told}
        scores = [self._score(server) for server in servers]
        in_turn = [(self._start + place) % len(servers) for place in range(len(servers))]
        chosen = min(in_turn, key=scores.__getitem__)
        self._sent[servers[chosen].number] += 1
        if self.options.counts_in_flight:
            self._start = (self._start + 1) % len(servers)
        return chosen

    def _use(self, server: ServerView) -> float:
        if not (self.options.counts_in_flight and server.num_blocks):
            return 0.0
        return 1 - server.num_free_blocks / server.num_blocks

    def _score(self, server: ServerView) -> float:
        told, sent = self._told[server.number], self._sent[server.number]
        waiting = told.num_waiting + sent
        if not self.options.counts_in_flight:
            return _WAITING * waiting + told.num_running
        score = max(server.num_requests, waiting + told.num_running)
        return score + waiting * _PRESSURE * max(0.0, told.use - _FREE_USE)


ROUTER = VllmBalancer
