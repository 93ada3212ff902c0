"""`scheduler=vllm` decides as vLLM v1 does, step by step, stepped and compressed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from engine.core.hashing import extend_hashes
from engine.core.plan import StepOutcome, StepPlan
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request
from engine.core.work import StepWork
from experiments import composed
from harness.workload.arrivals import OpenLoop
from simulator.decode_run import Durations
from simulator.fleets.fleet import Fleet
from simulator.replica import Replica
from tests.engine.core import vllm_reference
from tests.engine.core.vllm_reference import Step, VllmScheduler

CONF = Path(__file__).parents[3] / "conf" / "scheduler"
SCHEDULER = composed("scheduler=vllm", "engine.vllm_version=0.19.0").scheduler  # the reference is of that version
PRESET = {
    name: getattr(SCHEDULER, name)
    for name in yaml.safe_load((CONF / "vllm.yaml").read_text(encoding="utf-8"))
    if name not in ("defaults", "options")  # mixed, which has no options
}


@dataclass
class Case:
    """`requests`: tokens (prompt and outputs), number of prompt tokens, arrival, whether others can share them."""

    requests: list[tuple[list[int], int, int, bool]]
    limits: dict[str, Any]
    caching: bool
    async_scheduling: bool


def random_case(seed: int) -> Case:
    """Shared prefixes, outputs that others continue, tight pools and budgets."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 1, 2, 3, 4, 8, 16, 32])
    longest = rng.choice([4, 20, 60, 150])
    spread = rng.choice([0, 30, 300])
    stems = [[rng.randrange(9) for _ in range(2 * longest)] for _ in range(3)]
    requests: list[tuple[list[int], int, int, bool]] = []
    for i in range(rng.randint(1, 30)):
        num_prompt, num_output = rng.randint(1, longest), rng.randint(1, longest)
        if rng.random() < 0.4:
            num_prompt = max(block_size, num_prompt // block_size * block_size)
        length = num_prompt + num_output
        shared = rng.choice([0, num_prompt // 2, num_prompt, num_prompt + num_output // 2, length])
        tokens = (rng.choice(stems)[:shared] + [rng.randrange(9) for _ in range(length)])[:length]
        known = [request[0] for request in requests if request[3]]
        if known and rng.random() < 0.3:
            before = rng.choice(known)
            tokens, num_prompt = before + tokens, len(before) + (num_prompt if rng.random() < 0.7 else 0)
        has_content = rng.random() < 0.8
        if not has_content:  # nobody else's: what an unknown content stands for
            tokens = [100 * (i + 1) + token for token in tokens]
        tokens = tokens[: 4 * longest]
        requests.append((tokens, min(num_prompt, len(tokens) - 1), rng.randint(0, spread), has_content))
    requests.sort(key=lambda request: request[2])
    most = max(-(-len(tokens) // block_size) for tokens, *_ in requests)
    num_blocks = most + rng.choice([0, 1, 2, most // 2, most, 10 * most])
    pool_tokens = num_blocks * block_size
    max_num_seqs = rng.choice([1, 2, 8, 32])
    limits = {
        "num_blocks": num_blocks + 1,  # vLLM's null block is one of them
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + rng.choice([0, 1, 10, 100, 1000]),
        "max_model_len": min(pool_tokens, rng.choice([10**6, 1 + max(n for _, n, *_ in requests)])),
    }
    return Case(requests, limits, caching=rng.random() < 0.85, async_scheduling=rng.random() < 0.7)


class Log:
    """An observer that writes down every step as the reference does."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.finished: dict[int, tuple[Any, ...]] = {}

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        decodes = [(sequence.request_id, sequence.num_tokens - 1) for sequence in plan.decodes]
        used = plan.num_used_blocks
        for ahead in range(plan.num_steps):
            computed = [(request_id, length + ahead, 1) for request_id, length in decodes]
            computed += [(c.sequence.request_id, c.start, c.num_tokens) for c in plan.prefills]
            used += sum(len(each.blocks) for each in plan.growth if each.ahead == ahead > 0)
            state = (used, plan.num_running, plan.num_waiting)
            admitted, preempted = ([s.request_id for s in each] for each in (plan.admitted, plan.preempted))
            others = ([], []) if ahead else (admitted, preempted)
            self.steps.append((start_ns + ahead, computed, *others, state))

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        for s in outcome.finished:
            times = (s.first_scheduled_time, s.finish_time)
            self.finished[s.request_id] = (*times, s.num_cached_tokens, s.num_preemptions)


class UnitCost:
    """Every step takes 1 ns."""

    def step_ns(self, work: StepWork) -> int:
        return 1

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.ones(num_steps, np.int64)


def simulate(case: Case, *, compress: bool, **changed: Any) -> Log:
    options = {"enable_prefix_caching": case.caching, "async_scheduling": case.async_scheduling} | changed
    scheduler = make_scheduler(SchedulerOptions(**PRESET | options), **case.limits)

    def make(row: int, arrival: int) -> Request:
        tokens, num_prompt, _, has_content = case.requests[row]
        hashes: list[int] = []
        extend_hashes(hashes, tokens, scheduler.blocks.block_size, len(tokens) // scheduler.blocks.block_size)
        hashes_if_known = hashes if has_content else None
        num_output = len(tokens) - num_prompt
        return Request(row, num_prompt, num_output, arrival, block_hashes=hashes_if_known, priority=row % 3)

    log = Log()
    arrivals = OpenLoop(np.array([arrival for *_, arrival, _ in case.requests]))
    Fleet(arrivals, make, [Replica(scheduler, UnitCost(), log, compress=compress)]).run()
    scheduler.check_integrity()
    return log


def reference(case: Case) -> tuple[list[Step], list[vllm_reference.Request]]:
    scheduler = VllmScheduler(
        **case.limits, enable_prefix_caching=case.caching, async_scheduling=case.async_scheduling
    )  # fmt: skip
    requests = [
        vllm_reference.Request(i, t, n, len(t) - n, arrival) for i, (t, n, arrival, _) in enumerate(case.requests)
    ]
    return vllm_reference.run(scheduler, requests), requests


def as_logged(steps: list[Step]) -> Iterator[tuple[Any, ...]]:
    for step in steps:
        computed = [(request.request_id, start, count) for request, start, count in step.chunks]
        yield step.start, computed, step.admitted, step.preempted, step.state


def check(case: Case, *, compress: bool, **changed: Any) -> None:
    """Compare steps and results of both; `changed` replaces options of the preset."""
    steps, requests = reference(case)
    log = simulate(case, compress=compress, **changed)
    expected = list(as_logged(steps))
    for ours, theirs in zip(log.steps, expected, strict=False):
        assert ours == theirs
    assert len(log.steps) == len(expected)
    results = {r.request_id: (r.scheduled, r.finish, r.num_cached, r.num_preemptions) for r in requests}
    assert log.finished == results


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (50, 100))])
def test_the_preset_decides_as_vllm(first: int, compress: bool) -> None:
    for seed in range(first, first + 50):
        check(random_case(seed), compress=compress)


@pytest.mark.parametrize("seed", [736, 804, 823])
def test_a_blocked_prompt_is_looked_at_again_when_a_decode_fills_a_block_of_it(seed: int) -> None:
    check(random_case(seed), compress=True)


def test_the_cases_preempt_hit_the_cache_and_cut_prompts() -> None:
    results = [reference(random_case(seed)) for seed in range(50)]
    assert sum(request.num_preemptions for _, requests in results for request in requests) > 50
    assert sum(request.num_cached or 0 for _, requests in results for request in requests) > 1000
    assert any(len(step.sampled) < len(step.chunks) for steps, _ in results for step in steps)


@pytest.mark.parametrize("name", [name for name in PRESET if PRESET[name] != getattr(SchedulerOptions(), name)])
def test_each_option_of_the_preset_matters(name: str) -> None:
    default = getattr(SchedulerOptions(), name)
    with pytest.raises(AssertionError):
        for seed in range(150):
            case = random_case(seed)
            if name != "async_scheduling" or case.async_scheduling:
                check(case, compress=True, **{name: default})
