"""What the tests of rules need: servers with made-up numbers, requests and rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from engine.core.planning.policy_options import read_options
from engine.core.routing import find_router
from engine.core.routing.router import Router
from engine.core.sequence import Request


@dataclass
class Server:
    """A view with made-up numbers."""

    num_requests: int = 0
    num_tokens: int = 0
    hits: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 60
    number: int = 0
    num_uncached_tokens: int = 0
    asked: list[Request] = field(default_factory=list)

    def prefix_hits(self, request: Request) -> int:
        self.asked.append(request)
        return self.hits

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        return self.num_tokens, self.hits


SERVERS = st.lists(st.builds(Server, *[st.integers(0, 60)] * 3, *[st.integers(0, 9)] * 3), min_size=1, max_size=6)


def make(name: str, **options: Any) -> Router:
    router = find_router(name)
    assert router is not None
    return router(read_options(router.options_type, options, name))


def request(num_prompt_tokens: int = 50, *, request_id: int = 0, session: int | None = None) -> Request:
    return Request(request_id, num_prompt_tokens, 1, session=session)
