"""The server with the fewest requests that have not ended."""

from __future__ import annotations

from collections import abc

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.routing.views.loads import least_busy
from engine.core.sequence import Request


class LeastRequests(BaseRouter):
    """Of several with as few, the first."""

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        return least_busy(servers)


ROUTER = LeastRequests
