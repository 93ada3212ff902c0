"""The server with the fewest prompt tokens in requests that have not ended: long prompts count for what they are."""

from __future__ import annotations

from collections import abc

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


class LeastTokens(BaseRouter):
    """Of several with as few, the one with the fewest requests."""

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        loads = [(server.num_tokens, server.num_requests) for server in servers]
        return loads.index(min(loads))


ROUTER = LeastTokens
