"""Settings of TensorRT-LLM's scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.trtllm.chunking import SHARES

CAPACITY_POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


@dataclass(frozen=True)
class TrtllmOptions:
    """Settings of `policy=trtllm`, by the names that TensorRT-LLM gives them.

    Attributes:
        capacity_scheduler_policy: which requests fit into the memory. guaranteed_no_evict: those with room for all that
            they may generate, so that none is paused; max_utilization: those with blocks for the next step, of which
            the last to come is paused when blocks run out; static_batch: as guaranteed_no_evict, but prompts are
            computed only while no request decodes.
        context_chunking_policy: which prompts get the tokens of a step that has not enough for all:
            first_come_first_served each in turn all that is left, equal_progress all the same.
        batch_wait_timeout_iters: for how many steps prompts wait for more of them while others decode.
        batch_wait_max_tokens_ratio: share of `max_num_batched_tokens` from which a step is worth its prompts, so that
            they wait no longer; 0: they never wait.
    """

    capacity_scheduler_policy: str = "guaranteed_no_evict"
    context_chunking_policy: str = "first_come_first_served"
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name, names in (("capacity_scheduler_policy", CAPACITY_POLICIES), ("context_chunking_policy", SHARES)):
            if (value := getattr(self, name)) not in names:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(names)}")
        if self.batch_wait_timeout_iters < 0:
            raise ValueError(f"batch_wait_timeout_iters={self.batch_wait_timeout_iters}: must be 0 or more")
        if not 0 <= self.batch_wait_max_tokens_ratio <= 1:
            raise ValueError(f"batch_wait_max_tokens_ratio={self.batch_wait_max_tokens_ratio}: must be within 0 and 1")
