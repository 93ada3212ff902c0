"""The server with the fewest prompt tokens still to compute, among those that have the beginning of the prompt.

llm-d's endpoint picker since June 2026, in the guide "optimized-baseline": `prefix-cache-affinity-filter`, then
`token-load-scorer`, on what `approx-prefix-cache-producer` and `inflight-load-producer` know.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.core.routing.draws import draw
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


@dataclass(frozen=True)
class TokenLoadOptions:
    """Settings of `token_load`; the default is llm-d's.

    Attributes:
        min_match: share of the prompt that a server must have been sent before to be preferred.
        max_ahead_tokens: where the preferred servers have so many tokens more to compute than the others, all count; 0:
            never. llm-d asks for 18 s, at 15,928 tokens/s (`maxTTFTPenaltyMs`, `peakPrefillThroughput`).
    """

    min_match: float = 0.8
    max_ahead_tokens: int = 286_704

    def __post_init__(self) -> None:
        if not 0 <= self.min_match <= 1:
            raise ValueError(f"min_match={self.min_match}: must be >= 0 and <= 1")
        if self.max_ahead_tokens < 0:
            raise ValueError(f"max_ahead_tokens={self.max_ahead_tokens}: must be >= 0")


class TokenLoad(BaseRouter):
    """Counts a request until its first token, and of its prompt what the server was not sent before. Of several servers
    with as few tokens one is drawn. Decodes count for nothing."""

    options_type = TokenLoadOptions
    reads_prefixes = True
    reads_prompts = True
    least_block = 64  # tokens; as many of these as a server has blocks

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        options: TokenLoadOptions = self.options
        hits = [server.prefix_hits(request) for server in servers]
        loads = [server.num_uncached_tokens for server in servers]
        least = options.min_match * request.num_prompt_tokens
        preferred = [number for number, hit in enumerate(hits) if hit >= least]
        others = [number for number, hit in enumerate(hits) if hit < least]
        candidates = preferred or others
        if preferred and others and options.max_ahead_tokens:
            ahead = min(loads[number] for number in preferred) - min(loads[number] for number in others)
            if ahead > options.max_ahead_tokens:
                candidates = [*range(len(servers))]
        totals = [(loads[number] - hits[number], number) for number in candidates]
        fewest, _ = min(totals)
        drawn = [number for total, number in totals if total == fewest]
        return drawn[draw(request.request_id, len(drawn))]


ROUTER = TokenLoad
