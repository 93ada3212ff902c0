"""The rank of the shortest queue, as vLLM spreads requests over data-parallel ranks (`DPLBAsyncMPClient` in its
v1/engine/core_client.py): each waiting request counts as four running ones.

vLLM hears of the counts from time to time (`view_delay_ms` in conf/router/vllm_balancer.yaml), and adds what it has
sent since to the queues. When ranks come or go in between, those that stay keep their counts, and new ones have none.
That is the rule of 0.19. Since July 2026 (pull requests 47420 and 49204) vLLM counts what is in flight, weighs a queue
by the use of the KV cache and takes turns among equals, which is not simulated.
"""

from __future__ import annotations

from collections import abc
from typing import Any

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request

_WAITING = 4


class VllmBalancer(BaseRouter):
    """Of several with the lowest score, the first."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._told: dict[int, tuple[int, int]] = {}  # queue and batch, by the number of the server
        self._sent: dict[int, int] = {}  # since then

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        told = {server.number: (server.num_waiting, server.num_running) for server in servers}
        if any(self._told.get(number, counts) != counts for number, counts in told.items()):
            self._sent = {}
        self._told = told
        self._sent = {number: self._sent.get(number, 0) for number in told}
        scores = [_WAITING * (waiting + self._sent[number]) + running for number, (waiting, running) in told.items()]
        chosen = scores.index(min(scores))
        self._sent[servers[chosen].number] += 1
        return chosen


ROUTER = VllmBalancer
