"""Random workloads for the scheduler of SGLang."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from experiments.oracles.cases import Case, Group, Options, make_requests


@dataclass(frozen=True)
class SglangOptions(Options):
    """Those of SGLang besides: `block_size` is its page size, and `max_num_batched_tokens` bounds the prompt tokens of
    a step if there are no chunks."""

    chunked_prefill_size: int | None = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    ignore_eos: bool = False


@dataclass(frozen=True)
class SglangGroup:
    """A kind of cases: options that are fixed, and what happens besides."""

    options: dict[str, Any] = field(default_factory=dict)
    paged: bool = False
    stops: bool = False


_OVERLAP = {"async_scheduling": True}
_MIXED = {"enable_mixed_chunk": True}


def _policy(name: str) -> dict[str, Any]:
    return {"schedule_policy": name}


GROUPS = {
    "fcfs": SglangGroup(stops=True),
    "fcfs, pages": SglangGroup(paged=True, stops=True),
    "no prefix cache": SglangGroup({"enable_prefix_caching": False}, stops=True),
    "no prefix cache, pages": SglangGroup({"enable_prefix_caching": False}, paged=True, stops=True),
    "fixed lengths": SglangGroup({"ignore_eos": True}, paged=True),
    "no chunks": SglangGroup({"chunked_prefill_size": None}, stops=True),
    "no chunks, pages": SglangGroup({"chunked_prefill_size": None}, paged=True, stops=True),
    "lpm": SglangGroup(_policy("lpm"), stops=True),
    "lpm, pages": SglangGroup(_policy("lpm"), paged=True, stops=True),
    "dfs-weight": SglangGroup(_policy("dfs-weight"), stops=True),
    "dfs-weight, pages": SglangGroup(_policy("dfs-weight"), paged=True, stops=True),
    "lof": SglangGroup(_policy("lof"), stops=True),
    "random": SglangGroup(_policy("random"), paged=True, stops=True),
    "mixed": SglangGroup(_MIXED, stops=True),
    "mixed, pages": SglangGroup(_MIXED, paged=True, stops=True),
    "overlap": SglangGroup(_OVERLAP),
    "overlap, pages": SglangGroup(_OVERLAP, paged=True),
    "overlap, lpm": SglangGroup(_OVERLAP | _policy("lpm")),
    "overlap, dfs-weight, pages": SglangGroup(_OVERLAP | _policy("dfs-weight"), paged=True),
    "overlap, mixed": SglangGroup(_OVERLAP | _MIXED),
    "overlap, mixed, pages": SglangGroup(_OVERLAP | _MIXED, paged=True),
    "overlap, mixed, lpm": SglangGroup(_OVERLAP | _MIXED | _policy("lpm")),
}


def make_case(name: str, seed: int) -> Case:
    """The case number `seed` of a group; half of them are starved: many short prompts grow in a small pool."""
    group, random = GROUPS[name], Random(f"{name} {seed}")
    is_starved = random.random() < 0.5
    size = random.choice([2, 4, 8, 16]) if group.paged else 1
    longest = random.randint(10, random.choice([40, 120, 240])) + 2 * size
    num_tokens = longest + 2 * size + random.randint(0, random.choice([1, 2 if is_starved else 8]) * longest)
    max_num_seqs = random.randint(8, 24) if is_starved else random.randint(1, 8)
    chunk = -(-(max_num_seqs + random.randint(0, random.choice([4, 16, 64]))) // size) * size
    options = SglangOptions(
        block_size=size,
        num_blocks=-(-num_tokens // size),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        max_model_len=longest,
        chunked_prefill_size=chunk,
        schedule_conservativeness=random.choice([0.05, 0.1, 0.3] if is_starved else [1.0, 0.3, 1.5]),
    )
    options = replace(options, **group.options)
    if options.chunked_prefill_size is None:
        options = replace(options, max_num_batched_tokens=max(max_num_seqs, longest) + random.randint(1, 16))
    requests = make_requests(Group(stops=group.stops), random, longest, is_starved)
    kept = [replace(each, outputs=each.outputs[: longest - len(each.prompt)]) for each in requests]
    return Case(options, kept)
