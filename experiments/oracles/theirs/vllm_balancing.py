"""Random requests for data-parallel ranks: does our rule `vllm_balancer` send each where vLLM's client does?

vLLM's own `DPLBAsyncMPClient.get_core_engine_for_request` runs, out of v1/engine/core_client.py and without the rest of
that client. What ranks tell changes whenever it is told, as vLLM's coordinator tells it only then.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from engine.core.routing.vllm_balancer import VllmBalancer, VllmBalancerOptions
from engine.core.sequence import Request
from experiments.oracles.comparison import Tally
from simulator.versions.vllm_versions import vllm_version

BALANCING = "balancing of ranks"
_CLASS, _METHOD = "DPLBAsyncMPClient", "get_core_engine_for_request"
_NUM_EVENTS = 80
_NUM_BLOCKS = 40
Choose = Callable[[Any, Any], int]


@dataclass
class Rank:
    """A rank as our rule sees it."""

    number: int
    num_requests: int = 0
    num_tokens: int = 0
    num_uncached_tokens: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = _NUM_BLOCKS
    num_blocks: int = _NUM_BLOCKS

    def prefix_hits(self, request: Request) -> int:
        raise NotImplementedError

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        raise NotImplementedError

    def told(self, *, with_use: bool) -> list[float]:
        """What vLLM's client is told; before 0.27 nothing of the KV cache."""
        counts: list[float] = [self.num_waiting, self.num_running]
        return [*counts, 1 - self.num_free_blocks / self.num_blocks] if with_use else counts


def compare_balancing(folder: Path, version: str, numbers: range) -> Tally:
    """Run the cases with these numbers; a step is the choice of a rank.

    Args:
        folder: holds the directory `vllm` of the wheel.
    """
    tally, choose = Tally(BALANCING), _method(folder)
    options = VllmBalancerOptions(vllm_version(version).counts_in_flight)
    for number in numbers:
        chosen = list(_choices(Random(f"{BALANCING} {number}"), choose, VllmBalancer(options)))
        tally.num_cases += 1
        tally.num_steps += len(chosen)
        differing = next((place for place, (ours, vllms) in enumerate(chosen) if ours != vllms), None)
        if differing is not None:
            ours, vllms = chosen[differing]
            tally.differences.append((number, f"request {differing}: expected {vllms}, actual {ours}"))
    return tally


def _choices(random: Random, choose: Choose, rule: VllmBalancer) -> list[tuple[int, int]]:
    """Our choice and that of vLLM for each request of a case."""
    ranks = [Rank(number) for number in range(random.randint(2, 8))]
    with_use = rule.options.counts_in_flight
    client = _client(ranks, with_use=with_use)
    under_way: list[tuple[str, int]] = []
    is_told = False  # something since the last request; our rule does not see what was told in between
    chosen: list[tuple[int, int]] = []
    for number in range(_NUM_EVENTS):
        event = random.random()
        if event < 0.2 and not is_told:
            is_told = True
            _tell(random, ranks, client, with_use=with_use)
        elif event < 0.45 and under_way:
            name, rank = under_way.pop(random.randrange(len(under_way)))
            del client.reqs_in_flight[name]
            client.engine_inflight[rank] -= 1
            ranks[rank].num_requests -= 1
        else:
            asked = SimpleNamespace(
                request_id=str(number), resumable=False, data_parallel_rank=None, pooling_params=None
            )  # fmt: skip
            is_told = False
            vllms = choose(client, asked)
            ours = rule.choose(Request(number, 1, 1), ranks)
            chosen.append((ours, vllms))
            ranks[vllms].num_requests += 1
            under_way.append((asked.request_id, vllms))
    return chosen


def _tell(random: Random, ranks: list[Rank], client: SimpleNamespace, *, with_use: bool) -> None:
    """Let ranks tell something else of themselves than before."""
    before = [rank.told(with_use=with_use) for rank in ranks]
    while [rank.told(with_use=with_use) for rank in ranks] == before:
        for rank in ranks:
            rank.num_waiting, rank.num_running = random.choice([0, 0, random.randint(1, 9)]), random.randint(0, 9)
            rank.num_free_blocks = random.randint(0, _NUM_BLOCKS)
    client.lb_engines = [rank.told(with_use=with_use) for rank in ranks]


def _client(ranks: list[Rank], *, with_use: bool) -> SimpleNamespace:
    """In place of vLLM's client of all ranks, the only one."""
    return SimpleNamespace(
        core_engines=list(range(len(ranks))), eng_start_index=0,
        lb_engines=[rank.told(with_use=with_use) for rank in ranks],
        client_count=1, engine_inflight=Counter(), reqs_in_flight={}, streaming_reqs=set(),
    )  # fmt: skip


def _method(folder: Path) -> Choose:
    """vLLM's method."""
    path = folder / "vllm" / "v1" / "engine" / "core_client.py"
    (client,) = (
        node for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == _CLASS
    )  # fmt: skip
    (method,) = (node for node in client.body if isinstance(node, ast.FunctionDef) and node.name == _METHOD)
    names: dict[str, Any] = {"sys": sys, "get_late_interaction_engine_index": lambda params, num_ranks: None}
    module = ast.Module([method], [])
    exec(compile(module, str(path), "exec"), names)  # annotations stay unevaluated, as in this file
    choose: Choose = names[_METHOD]
    return choose
