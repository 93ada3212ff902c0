"""Settings of SGLang's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.sglang.queue import SCHEDULE_POLICIES


@dataclass(frozen=True)
class SglangOptions:
    """Settings of `policy=sglang`, by the names that SGLang gives them.

    Attributes:
        schedule_policy: who is next: fcfs who came first, lpm who has the longest prefix in the cache, dfs-weight those
            of the subtree of the cache that the most wait for, lof who may generate the most, random anybody. A request
            that was retracted comes last, except as these rules have it.
        schedule_conservativeness: factor of the share of its `max_tokens` that a request is expected to generate.
        enable_mixed_chunk: decodes take part in steps with prompts.
        ignore_eos: all requests generate as many tokens as they may, as those of benchmarks do, and the scheduler
            knows it.
        scheduler_recv_interval: requests are received in one of so many steps with decodes alone, and behind a step
            with prompts.
    """

    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    ignore_eos: bool = False
    scheduler_recv_interval: int = 1

    def __post_init__(self) -> None:
        if self.schedule_policy not in SCHEDULE_POLICIES:
            raise ValueError(f"schedule_policy={self.schedule_policy!r}: choose one of {', '.join(SCHEDULE_POLICIES)}")
        if not 0 <= (factor := self.schedule_conservativeness) <= 100:
            raise ValueError(f"schedule_conservativeness={factor:g}: must be >= 0 and <= 100")
        if (interval := self.scheduler_recv_interval) < 1:
            raise ValueError(f"scheduler_recv_interval={interval}: must be >= 1")
