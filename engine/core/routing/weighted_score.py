"""The server with the highest weighted sum of scores, as the endpoint picker of llm-d and of Kubernetes' Gateway API
Inference Extension has it; the default weights are those of its `default-plugins.yaml`. llm-d's guide
"optimized-baseline" had `no_hit_lru=2` besides, until June 2026."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, fields

from engine.core.routing.draws import draw
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.sequence import Request


@dataclass(frozen=True)
class WeightedScoreOptions:
    """Weights of the scores, each of which is from 0 to 1.

    Attributes:
        prefix: of the share of the prompt that the server's prefix cache holds.
        queue: of its queue, 1 for the shortest of all servers and 0 for the longest.
        kv_use: of the share of its KV blocks that is free.
        running: of its batch, 1 for the smallest of all servers and 0 for the largest.
        no_hit_lru: of the time since a server was last sent a prompt that no server had anything of, for such prompts:
            1 for the longest (or never), 0 for the shortest, evenly between; so prefixes are spread evenly.
        precise: the share of the prompt is that which servers tell of, with every block that they cache or evict (KV
            events), and not that which they were sent.
        sent_counts_ms: for so long what a server was sent counts as cached there, though it does not tell of it yet
            (`speculativeTTL` of llm-d's index; 0: never); with `precise` only.
        host: what a block in the memories behind the device counts of one on the device; with `precise` only.
    """

    prefix: float = 3.0
    queue: float = 2.0
    kv_use: float = 2.0
    running: float = 0.0
    no_hit_lru: float = 0.0
    precise: bool = False
    sent_counts_ms: float = 2000.0
    host: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if (weight := getattr(self, field.name)) < 0:
                raise ValueError(f"{field.name}={weight}: must be >= 0")
        if self.host and not self.precise:
            raise ValueError(f"host={self.host}: needs precise=true, since only servers know what they keep there")


class WeightedScore(BaseRouter):
    """Of several with the highest score, one that is drawn, as llm-d's `max-score-picker` shuffles them."""

    options_type = WeightedScoreOptions

    def __init__(self, options: WeightedScoreOptions) -> None:
        super().__init__(options)
        self.reads_caches, self.reads_prefixes = options.precise, not options.precise
        self.sent_counts_ms = options.sent_counts_ms
        self._cold: list[int] = []  # numbers of servers that were sent a prompt that nobody had, in this order

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        options: WeightedScoreOptions = self.options
        hits = [self._hits(request, server) for server in servers]
        spreads = options.no_hit_lru > 0 and not any(hits)
        rests = self._rests([server.number for server in servers]) if spreads else [0.0] * len(servers)
        queues = _shortness([server.num_waiting for server in servers])
        batches = _shortness([server.num_running for server in servers])
        scores = [
            options.prefix * hit / request.num_prompt_tokens
            + options.queue * queue
            + options.kv_use * server.num_free_blocks / server.num_blocks
            + options.running * batch
            + options.no_hit_lru * rest
            for server, hit, queue, batch, rest in zip(servers, hits, queues, batches, rests, strict=True)
        ]
        best = max(scores)
        candidates = [number for number, score in enumerate(scores) if score == best]
        chosen = candidates[draw(request.request_id, len(candidates))]
        if spreads:
            number = servers[chosen].number
            self._cold = [*(each for each in self._cold if each != number), number]
        return chosen

    def _rests(self, numbers: list[int]) -> list[float]:
        """1 for the server that has been without a prompt that nobody had longest, 0 for the last one that got one."""
        if len(numbers) == 1:
            return [1.0]
        got = [number for number in self._cold if number in numbers]
        order = [*(number for number in numbers if number not in got), *got]
        return [1 - order.index(number) / (len(numbers) - 1) for number in numbers]

    def _hits(self, request: Request, server: ServerView) -> float:
        if not self.reads_caches:
            return server.prefix_hits(request)
        on_device, behind = server.cached_tokens(request)
        return on_device + self.options.host * behind


def _shortness(lengths: list[int]) -> list[float]:
    """1 for the shortest, 0 for the longest, evenly between; all 1 where they are equal."""
    longest, span = max(lengths), max(lengths) - min(lengths)
    return [(longest - length) / span for length in lengths] if span else [1.0] * len(lengths)


ROUTER = WeightedScore
