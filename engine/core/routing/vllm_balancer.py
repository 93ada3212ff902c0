"""The rank of the shortest queue, as vLLM spreads requests over data-parallel ranks (`DPLBAsyncMPClient` in its
v1/engine/core_client.py): each waiting request counts as four running ones.

vLLM hears of the counts from time to time (`view_delay_ms` in conf/router/vllm_balancer.yaml), and adds what it has
sent since to the queues. When ranks come or go, it starts again from counts of those that are there (the coordinator's,
on elastic scaling).
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
        self._told: list[tuple[int, int, int]] = []  # number of the server, its queue, its batch
        self._sent: list[int] = []  # since then

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        told = [(server.number, server.num_waiting, server.num_running) for server in servers]
        if told != self._told:
            self._told, self._sent = told, [0] * len(servers)
        scores = [
            _WAITING * (waiting + sent) + running for (_, waiting, running), sent in zip(told, self._sent, strict=True)
        ]
        number = scores.index(min(scores))
        self._sent[number] += 1
        return number


ROUTER = VllmBalancer
