"""The server whose prefix cache holds most of the prompt, unless it is much busier than the others."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


@dataclass(frozen=True)
class PrefixAffinityOptions:
    """Settings of `prefix_affinity`.

    Attributes:
        min_match: share of the prompt that a cache must hold for the request to follow it; below that the server with
            the fewest requests gets it.
        max_ahead: requests that a server may have more than the least busy one and still be followed to ...
        max_ratio: ... or if it has at most this many times as many. Beyond both, load counts and not the cache.
    """

    min_match: float = 0.1
    max_ahead: int = 16
    max_ratio: float = 1.5

    def __post_init__(self) -> None:
        if not 0 <= self.min_match <= 1:
            raise ValueError(f"min_match={self.min_match}: must be >= 0 and <= 1")
        if self.max_ahead < 0:
            raise ValueError(f"max_ahead={self.max_ahead}: must be >= 0")
        if self.max_ratio < 1:
            raise ValueError(f"max_ratio={self.max_ratio}: must be >= 1")


class PrefixAffinity(BaseRouter):
    """Follows the cache while servers are about as busy as one another, as SGLang's cache-aware router does."""

    options_type = PrefixAffinityOptions
    reads_prefixes = True

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        options: PrefixAffinityOptions = self.options
        counts = [server.num_requests for server in servers]
        fewest = min(counts)
        most = max(fewest + options.max_ahead, fewest * options.max_ratio)
        hits = [server.prefix_hits(request) if server.num_requests <= most else -1 for server in servers]
        best = max(hits)
        if best >= options.min_match * request.num_prompt_tokens:
            return min((number for number, hit in enumerate(hits) if hit == best), key=counts.__getitem__)
        return counts.index(fewest)


ROUTER = PrefixAffinity
