"""Any server, all as likely: what a router does that knows nothing and keeps nothing."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.core.routing.draws import draw
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


@dataclass(frozen=True)
class DrawOptions:
    """Settings of rules that draw.

    Attributes:
        seed: another seed draws other servers, from 0.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed={self.seed}: must be >= 0 and < 2**63")


class Random(BaseRouter):
    options_type = DrawOptions
    reads_servers = False

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        return draw(request.request_id, len(servers), self.options.seed)


ROUTER = Random
