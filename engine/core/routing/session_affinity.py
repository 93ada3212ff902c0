"""All turns of a conversation on one server, whatever its load: what a load balancer with sticky sessions does."""

from __future__ import annotations

from collections import abc

from engine.core.routing.draws import rank
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.routing.views.loads import least_busy
from engine.core.sequence import Request


class SessionAffinity(BaseRouter):
    """A session has a server of its own; a request without one goes to the server with the fewest requests."""

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        session = request.session
        if session is not None:
            return max(range(len(servers)), key=lambda place: rank(session, servers[place].number))
        return least_busy(servers)


ROUTER = SessionAffinity
