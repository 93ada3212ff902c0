"""How busy servers are, for the rules that go by it."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # compiled without the rules' interface
    from engine.core.routing.router import ServerView


def least_busy(servers: abc.Sequence[ServerView]) -> int:
    """The server with the fewest requests that have not ended; of several with as few, the first."""
    counts: list[int] = [server.num_requests for server in servers]
    return counts.index(min(counts))
