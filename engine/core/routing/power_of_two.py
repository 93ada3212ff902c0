"""The less busy of two servers that are drawn: nearly as even as asking all of them (Mitzenmacher 2001)."""

from __future__ import annotations

from collections import abc

from engine.core.routing.draws import draw
from engine.core.routing.random import DrawOptions
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


class PowerOfTwo(BaseRouter):
    """Busy is who has more requests that have not ended; of two with as many, the first one drawn."""

    options_type = DrawOptions

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        count, seed = len(servers), self.options.seed
        first = draw(request.request_id, count, 2 * seed)
        if count == 1:
            return first
        other = draw(request.request_id, count - 1, 2 * seed + 1)  # any but the first
        other += other >= first
        return other if servers[other].num_requests < servers[first].num_requests else first


ROUTER = PowerOfTwo
