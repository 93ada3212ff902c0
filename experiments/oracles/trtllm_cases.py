"""Random workloads for the scheduler of TensorRT-LLM."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from experiments.oracles.cases import Case, Group, Options, make_requests


@dataclass(frozen=True)
class TrtllmOptions(Options):
    """Those of TensorRT-LLM besides, in small letters."""

    capacity_scheduler_policy: str = "guaranteed_no_evict"
    context_chunking_policy: str = "first_come_first_served"
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0


@dataclass(frozen=True)
class TrtllmGroup:
    """A kind of cases: options that are fixed, and what happens besides."""

    options: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    waits: bool = False  # prompts for more of them, while others decode


_OVERLAP = {"async_scheduling": True}
_WHOLE = {"enable_chunked_prefill": False}
_UNCACHED = {"enable_prefix_caching": False}
_EQUAL = {"context_chunking_policy": "equal_progress"}
_MAX = {"capacity_scheduler_policy": "max_utilization"}
_STATIC = {"capacity_scheduler_policy": "static_batch"}

GROUPS = {
    "no evict": TrtllmGroup(stops=True),
    "no evict, no reuse": TrtllmGroup(_UNCACHED, stops=True),
    "no evict, whole prompts": TrtllmGroup(_WHOLE, stops=True),
    "no evict, equal progress": TrtllmGroup(_EQUAL, stops=True),
    "no evict, overlap": TrtllmGroup(_OVERLAP),
    "no evict, overlap, whole prompts": TrtllmGroup(_OVERLAP | _WHOLE),
    "no evict, overlap, equal progress": TrtllmGroup(_OVERLAP | _EQUAL),
    "max utilization": TrtllmGroup(_MAX, stops=True),
    "max utilization, no reuse": TrtllmGroup(_MAX | _UNCACHED, stops=True),
    "max utilization, whole prompts": TrtllmGroup(_MAX | _WHOLE, stops=True),
    "max utilization, equal progress": TrtllmGroup(_MAX | _EQUAL, stops=True),
    "static batch": TrtllmGroup(_STATIC, stops=True),
    "static batch, whole prompts": TrtllmGroup(_STATIC | _WHOLE, stops=True),
    "static batch, overlap": TrtllmGroup(_STATIC | _OVERLAP),
    "no evict, batch wait": TrtllmGroup(stops=True, waits=True),
    "no evict, batch wait, whole prompts": TrtllmGroup(_WHOLE, stops=True, waits=True),
    "no evict, batch wait, overlap": TrtllmGroup(_OVERLAP, waits=True),
    "max utilization, batch wait": TrtllmGroup(_MAX, stops=True, waits=True),
}


def make_case(name: str, seed: int) -> Case:
    """The case number `seed` of a group; half of them are starved: many short prompts grow in a small pool."""
    group, random = GROUPS[name], Random(f"{name} {seed}")
    is_starved = random.random() < 0.5
    size = random.choice([2, 4, 8, 16])
    longest = random.randint(10, random.choice([40, 120, 240])) + 2 * size
    num_tokens = longest + 2 * size + random.randint(0, random.choice([1, 2 if is_starved else 8]) * longest)
    max_num_seqs = random.randint(8, 24) if is_starved else random.randint(1, 8)
    options = TrtllmOptions(
        block_size=size,
        num_blocks=-(-num_tokens // size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + size + random.randint(0, random.choice([4, 16, 64])),
        max_model_len=longest,
    )
    options = replace(options, **group.options)
    if group.waits:
        timeout, ratio = random.choice([1, 3, 10]), random.choice([0.25, 0.5, 1.0])
        options = replace(options, batch_wait_timeout_iters=timeout, batch_wait_max_tokens_ratio=ratio)
    if not options.enable_chunked_prefill:
        options = replace(options, max_num_batched_tokens=max(max_num_seqs, longest) + random.randint(1, 16))
    requests = make_requests(Group(stops=group.stops), random, longest, is_starved)
    kept = [replace(each, outputs=each.outputs[: longest - len(each.prompt)]) for each in requests]
    return Case(options, kept)
