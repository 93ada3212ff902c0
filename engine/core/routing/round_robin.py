"""Servers in turn: the same number of requests for each, however long they are."""

from __future__ import annotations

from collections import abc
from typing import Any

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


class RoundRobin(BaseRouter):
    """The first request goes to the first server."""

    reads_servers = False

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._turn = -1

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        self._turn = (self._turn + 1) % len(servers)
        return self._turn


ROUTER = RoundRobin
