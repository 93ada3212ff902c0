"""Options that random workloads are run with."""

from __future__ import annotations

import random
from typing import Any

from engine.core.policies import POLICIES
from engine.core.policies.admission_order import PADDINGS
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions

ALTERNATIVES: dict[str, Any] = {
    "allocation": "chunk",
    "eviction": "lru",
    "victim": "last",
    "full_hit": "recompute_block",
    "queue": "fcfs",
    "async_scheduling": True,
    "max_padding": 4,
}
POLICY_OPTIONS: dict[str, dict[str, list[Any]]] = {
    "admission_order": {
        "cuts_alone": [True, False],
        "ends_with_giving_way": [True, False],
        "pads_admissions": list(PADDINGS),
        "finds_verified": [True, False],
    },
    "static": {"max_queue_delay_s": [0.0, 5e-9], "padded": [True, True, False]},
    "priority": {"ageing_s": [None, 0.0, 5e-9, 50e-9]},
    "sjf": {"relative_error": [0.0, 0.0, 1.0], "ageing_tokens_per_s": [0.0, 2e8]},
    "edf": {"ttft_s": [0.0, 10e-9], "tpot_s": [0.0, 2e-9]},
    "fair": {"input_weight": [0, 1], "output_weight": [1, 2]},
    "sglang": {
        "schedule_policy": ["fcfs", "fcfs", "lpm", "dfs-weight", "lof", "random"],
        "schedule_conservativeness": [0.05, 0.05, 0.3, 1.0],
        "enable_mixed_chunk": [False, True],
        "ignore_eos": [False, False, True],
        "scheduler_recv_interval": [1, 1, 3],
    },
    "trtllm": {
        "capacity_scheduler_policy": ["guaranteed_no_evict", "max_utilization", "max_utilization", "static_batch"],
        "context_chunking_policy": ["first_come_first_served", "equal_progress"],
        "batch_wait_timeout_iters": [0, 0, 5],
        "batch_wait_max_tokens_ratio": [0.0, 0.5, 1.0],
    },
}
"""Settings that are drawn for a policy; a step takes 1 ns. A policy that is not named has its defaults."""
OWN_POLICY = "tests.engine.fuzz.outputs_fit:OutputsFit"
"""A policy from elsewhere that restricts admission; `tests.engine.fuzz` enters it."""
APART = ("prefill_first", "static")
"""Policies that never let prompts and decodes share a step."""
UNSHARED: dict[str, Any] = {
    "enable_prefix_caching": False,
    "allocation": "prompt",
    "admission": "full_prompt",
    "preemption": "recompute",
    "recompute_token_us": None,
}
"""Options that go with contiguous reservations."""


def needs_of(policy: str) -> dict[str, Any]:
    """Options that a policy needs, if any, and what goes with them."""
    needs = dict(POLICIES[policy].needs)
    return needs | {"recompute_token_us": None, "watermark": 0.0} if needs else needs


def random_options(rng: random.Random) -> SchedulerOptions:
    """The defaults, vLLM's rules, or anything in between."""
    options: dict[str, Any] = {
        "policy": rng.choice(["mixed", "mixed", "prefill_first", "prefill_first", "static", "admission_order"]),
        "watermark": rng.choice([0.0, 0.01, 0.2]),
        "enable_prefix_caching": rng.random() < 0.9,
    }
    names = rng.choice([(), tuple(ALTERNATIVES), tuple(name for name in ALTERNATIVES if rng.random() < 0.5)])
    options |= {name: ALTERNATIVES[name] for name in names}
    if rng.random() < 0.2:
        options["long_prefill_token_threshold"] = rng.choice([1, 3, 20])
    if rng.random() < 0.1:
        options["enable_chunked_prefill"] = False
    if rng.random() < 0.2:
        options["victim"] = "least_urgent"
    if options.get("allocation") == "chunk" and rng.random() < 0.3:
        options["admission"] = "first_chunk"
        if rng.random() < 0.7:  # so that the first chunk often fits where the whole prompt does not
            options["long_prefill_token_threshold"] = rng.choice([1, 3, 8])
    return SchedulerOptions(**options)


def random_offload(options: SchedulerOptions, most: int, rng: random.Random) -> OffloadOptions:
    """Tiers that hold a block, a sequence or many."""
    may_overlap = options.enable_chunked_prefill and options.max_padding is None
    return OffloadOptions(
        num_disk_blocks=rng.choice([0, 1, most, 10 * most]),
        overlap=may_overlap and rng.random() < 0.7,
        host_eviction=rng.choice(["lru", "fifo"]),
        disk_eviction=rng.choice(["lru", "fifo"]),
    )
