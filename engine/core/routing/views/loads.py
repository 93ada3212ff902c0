"""How busy servers are, for the rules that go by it."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

from engine.core.sequence import Request

if TYPE_CHECKING:  # compiled without the rules' interface
    from engine.core.routing.router import ServerView


class Counted:
    """A server whose requests are counted.

    Attributes:
        num_requests: that it was sent and that have not ended.
    """

    def __init__(self) -> None:
        self.num_requests = 0


def least_busy(servers: abc.Sequence[ServerView]) -> int:
    """The server with the fewest requests that have not ended; of several with as few, the first."""
    least = fewest = 0
    for place, server in enumerate(servers):
        if not isinstance(server, Counted):
            return min(range(len(servers)), key=lambda each: servers[each].num_requests)
        count = server.num_requests  # where this is compiled, it is read by its place
        if not place or count < fewest:
            least, fewest = place, count
    return least


class UncachedPrompts:
    """What a server still has to compute of its prompts, as far as who sends it requests can know.

    Attributes:
        num_tokens: of the prompts of requests that have no token yet, those that the server was not sent before.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._of: dict[int, int] = {}  # by the request's id

    def count(self, request: Request, num_known: int) -> None:
        """A request is sent, of whose prompt the server was sent `num_known` tokens before."""
        self._of[request.request_id] = uncached = request.num_prompt_tokens - num_known
        self.num_tokens += uncached

    def settle(self, request: Request) -> None:
        """The request has a token, or has ended."""
        self.num_tokens -= self._of.pop(request.request_id, 0)
