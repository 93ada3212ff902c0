"""The rule by which requests are spread behind several frontends of Dynamo, as srt-slurm starts them.

    client ──▶ processes of nginx, each in turns for itself ──▶ frontends, each in turns for itself ──▶ servers

Which frontend gets a request is drawn. So all servers get as many requests in the long run, and some two at a time.
"""

from __future__ import annotations

from collections import Counter, abc
from dataclasses import dataclass

from engine.core.routing.draws import draw
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


@dataclass(frozen=True)
class FrontendsOptions:
    """Settings of the rule.

    Attributes:
        number: frontends; one takes turns.
        seed: of the draws.
    """

    number: int = 1
    seed: int = 0


class Frontends(BaseRouter):
    options_type = FrontendsOptions

    def __init__(self, options: FrontendsOptions) -> None:
        super().__init__(options)
        self._turns: Counter[int] = Counter()

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        frontend = draw(request.request_id, self.options.number, self.options.seed)
        turn = self._turns[frontend]
        self._turns[frontend] += 1
        return turn % len(servers)
