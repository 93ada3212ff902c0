"""The server with the highest weighted sum of scores, as the endpoint picker of llm-d and of Kubernetes' Gateway API
Inference Extension has it; the default weights are those of its `default-plugins.yaml`."""

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
        precise: the share of the prompt is that which servers tell of, with every block that they cache or evict (KV
            events), and not that which they were sent.
        host: what a block in the memories behind the device counts of one on the device; with `precise` only.
    """

    prefix: float = 3.0
    queue: float = 2.0
    kv_use: float = 2.0
    running: float = 0.0
    precise: bool = False
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

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        options: WeightedScoreOptions = self.options
        queues = _shortness([server.num_waiting for server in servers])
        batches = _shortness([server.num_running for server in servers])
        scores = [
            options.prefix * self._hits(request, server) / request.num_prompt_tokens
            + options.queue * queue
            + options.kv_use * server.num_free_blocks / server.num_blocks
            + options.running * batch
            for server, queue, batch in zip(servers, queues, batches, strict=True)
        ]
        best = max(scores)
        candidates = [number for number, score in enumerate(scores) if score == best]
        return candidates[draw(request.request_id, len(candidates))]

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
