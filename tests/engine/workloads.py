"""Random workloads to try a scheduler with: shared prefixes, repeated prompts, starved pools, aborts, stops."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from engine.core.policy import POLICIES
from engine.core.scheduler_options import SchedulerOptions

ALTERNATIVES: dict[str, Any] = {
    "allocation": "chunk",
    "eviction": "lru",
    "victim": "last",
    "full_hit": "recompute_block",
    "queue": "fcfs",
    "async_scheduling": True,
    "max_padding": 4,
}


@dataclass
class Request:
    tokens: list[int]  # prompt, then what the model would generate
    num_prompt_tokens: int
    arrival_step: int
    contents: str  # "tokens", "hashes" (identity of blocks) or "none"
    priority: int = 0
    abort_step: int | None = None
    stop_after: int | None = None  # a stop condition met after this many output tokens

    @property
    def max_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens


@dataclass
class Workload:
    requests: list[Request]
    options: SchedulerOptions
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


def random_options(rng: random.Random) -> SchedulerOptions:
    """The defaults, vLLM's rules, or anything in between."""
    options: dict[str, Any] = {
        "policy": rng.choice(sorted(POLICIES)),
        "watermark": rng.choice([0.0, 0.01, 0.2]),
        "enable_prefix_caching": rng.random() < 0.9,
    }
    names = rng.choice([(), tuple(ALTERNATIVES), tuple(name for name in ALTERNATIVES if rng.random() < 0.5)])
    return SchedulerOptions(**options, **{name: ALTERNATIVES[name] for name in names})


def random_workload(seed: int) -> Workload:
    """A workload that shares prefixes, repeats prompts, starves for blocks and aborts."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 1, 2, 3, 4, 8, 16, 16, 64, 256])
    longest = rng.choice([4, 20, 60, 150])
    stems = [[rng.randrange(50) for _ in range(longest)] for _ in range(rng.randint(1, 3))]
    contents = rng.choice([["tokens"], ["hashes"], ["none"], ["tokens", "none"], ["hashes", "none"]])
    aligned = rng.random() < 0.4
    stops = rng.random() < 0.3
    requests: list[Request] = []
    spread = rng.choice([0, 30, 300])
    for _ in range(rng.randint(1, 30)):
        num_prompt = rng.randint(1, longest)
        if aligned:
            num_prompt = max(block_size, num_prompt // block_size * block_size)
        stem = (rng.choice(stems) * (num_prompt // longest + 1))[: rng.randint(0, num_prompt)]
        if rng.random() < 0.5:
            stem = (rng.choice(stems) * (num_prompt // longest + 1))[:num_prompt]
        tokens = stem + [rng.randrange(50) for _ in range(num_prompt - len(stem))]
        num_output = rng.randint(1, longest)
        # Outputs that a later prompt continues, as the turns of a conversation do.
        tokens += (rng.choice(stems) * (num_output // longest + 1))[:num_output]
        if requests and rng.random() < 0.3:
            before = rng.choice(requests)
            tokens, num_prompt = before.tokens + tokens, len(before.tokens) + (num_prompt if rng.random() < 0.7 else 0)
            tokens = tokens if len(tokens) > num_prompt else [*tokens, 0]
        requests.append(
            Request(
                tokens[: 4 * longest + block_size],
                min(num_prompt, 4 * longest + block_size - 1),
                rng.randint(0, spread),
                rng.choice(contents),
                priority=rng.choice([0, 0, 1]) if seed % 5 == 0 else 0,
                abort_step=rng.randint(0, spread + 100) if rng.random() < 0.1 else None,
                stop_after=rng.randint(1, longest) if stops and rng.random() < 0.4 else None,
            )
        )
    most = max(-(-len(request.tokens) // block_size) for request in requests)
    max_num_seqs = rng.choice([1, 2, 8, 32])
    return Workload(
        requests,
        options=random_options(rng),
        block_size=block_size,
        num_blocks=most + rng.choice([1, 1, 2, most, 10 * most]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, 1, 10, 100, 1000]),
    )
