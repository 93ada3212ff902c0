"""TensorRT-LLM's rules, worked by hand; its own scheduler is compared with in experiments/oracles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.sequence import Request, RequestRefusedError
from engine.core.trtllm.chunking import Context, equal_progress, first_come_first_served, whole_or_shared
from tests.engine.core.builders import chunks, run, step
from tests.policies import TRTLLM


def make(num_blocks: int = 100, *, max_num_batched_tokens: int = 16, chunked: bool = True, **options: Any) -> Scheduler:
    rules = replace(TRTLLM, options=options, enable_chunked_prefill=chunked)
    limits: dict[str, Any] = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": max_num_batched_tokens}
    return make_scheduler(rules, num_blocks=num_blocks, **limits)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("guaranteed_no_evict", [1, 1, 1]), ("max_utilization", [1, 2, 3]), ("static_batch", [1] * 3)],
)
def test_who_fits_into_the_memory(policy: str, expected: list[int]) -> None:
    # 10 blocks; each prompt has one, and its request may come to have six.
    scheduler, running = make(10, capacity_scheduler_policy=policy), []
    for number in range(3):
        scheduler.add(Request(number, 4, 20))
        running.append(step(scheduler, number).num_running)
    assert running == expected


def test_who_came_last_is_paused_and_computes_again() -> None:
    scheduler = make(8, capacity_scheduler_policy="max_utilization")
    for number in range(3):
        scheduler.add(Request(number, 4, 12))
    plans = [*run(scheduler)]
    first = next(plan for plan in plans if plan.preempted)
    assert [s.request_id for s in first.preempted] == [2] and first.num_decodes == 2
    assert sum(len(plan.preempted) for plan in plans) == 1


def test_a_static_batch_admits_nobody_while_it_decodes() -> None:
    scheduler = make(capacity_scheduler_policy="static_batch")
    for number in range(6):
        scheduler.add(Request(number, 4, 3 + number))
    admitted = [len(plan.admitted) for plan in run(scheduler)]
    assert [each for each in admitted if each] == [4, 2] and admitted.index(2) == 6


def test_who_could_share_the_block_that_another_computes_waits_for_it() -> None:
    scheduler = make()
    for number in range(3):
        scheduler.add(Request(number, 6, 2, token_ids=[1, 2, 3, 4, 5, number]))
    scheduler.add(Request(3, 6, 2, token_ids=[9, 2, 3, 4, 5, 6]))
    assert [chunks(plan) for plan in run(scheduler)][:2] == [[(0, 0, 6), (3, 0, 6)], [(1, 4, 2), (2, 4, 2)]]


def test_what_is_stored_is_lost_from_the_end_and_with_what_it_follows() -> None:
    scheduler = make(6)
    for now, tokens in enumerate([[1] * 12, [2] * 12]):
        scheduler.add(Request(now, 12, 1, token_ids=tokens))
        step(scheduler, now)
    scheduler.add(Request(2, 13, 1, token_ids=[1] * 13))  # it takes the block that was freed first: its own third one
    assert chunks(step(scheduler, 2)) == [(2, 12, 1)]
    scheduler.add(Request(3, 13, 1, token_ids=[2] * 13))
    assert chunks(step(scheduler, 3)) == [(3, 8, 5)]


def test_whole_prompts_that_do_not_fit_hold_up_those_behind_them() -> None:
    scheduler = make(chunked=False)
    for number, length in enumerate((9, 8, 3)):
        scheduler.add(Request(number, length, 2))
    assert [chunks(plan) for plan in run(scheduler)][:2] == [[(0, 0, 9)], [(1, 0, 8), (2, 0, 3)]]
    with pytest.raises(RequestRefusedError, match="share blocks that they write to"):
        scheduler.add(Request(9, 4, 4, num_sequences=2))


CONTEXTS = [Context(20, 0), Context(30, 16), Context(6, 0)]


@pytest.mark.parametrize(
    ("budget", "fcfs", "equal"),
    [
        (40, [20, 30, 6], [20, 30, 6]),
        (30, [20, 8, 0], [12, 12, 6]),
        (23, [20, 0, 0], [8, 8, 6]),
        (7, [4, 0, 0], [4, 0, 0]),
    ],
)
def test_how_the_tokens_of_a_step_are_shared_out(budget: int, fcfs: list[int], equal: list[int]) -> None:
    """A chunk ends its prompt or is a multiple of 4; of the second prompt 16 tokens are stored."""
    assert whole_or_shared(CONTEXTS, budget, 100, 4, first_come_first_served) == fcfs
    assert whole_or_shared(CONTEXTS, budget, 100, 4, equal_progress) == equal


def test_prompts_wait_for_more_of_them_while_others_decode() -> None:
    # A step of 16 tokens is worth its prompts from 8 on; the first prompt, beside which nobody decodes, does not wait.
    scheduler = make(batch_wait_timeout_iters=3, batch_wait_max_tokens_ratio=0.5)
    admitted = []
    for now in range(12):
        if now in (0, 1, 7, 8):
            scheduler.add(Request(now, 4, 30))
        admitted.append([s.request_id for s in step(scheduler, now).admitted])
    # 1 waits for three steps; 7 for one, until 8 is there, too: 8 tokens of prompts, and 2 decodes.
    assert [(now, each) for now, each in enumerate(admitted) if each] == [(0, [0]), (4, [1]), (8, [7, 8])]


def test_what_a_step_would_compute_decides_whether_prompts_wait() -> None:
    scheduler = make(batch_wait_timeout_iters=9, batch_wait_max_tokens_ratio=0.75)
    tokens = [*range(100)]
    scheduler.add(Request(0, 13, 30, token_ids=tokens[:13]))
    step(scheduler, 0)
    scheduler.add(Request(1, 13, 30, token_ids=tokens[:13]))  # of which 12 tokens are stored
    assert not step(scheduler, 1).admitted
    scheduler.add(Request(2, 12, 30, token_ids=tokens[50:62]))
    assert [each.request_id for each in step(scheduler, 2).admitted] == [1, 2]


def test_a_prompt_that_is_cut_and_waits_for_more_is_looked_at_in_each_step() -> None:
    scheduler = make(batch_wait_timeout_iters=3, batch_wait_max_tokens_ratio=1.0)
    scheduler.add(Request(0, 4, 40))
    step(scheduler)
    scheduler.add(Request(1, 20, 4))
    plans = [step(scheduler) for _ in range(8)]
    assert [(plan.horizon, [each.num_tokens for each in plan.prefills]) for plan in plans] == [
        (1, []), (1, []), (1, []), (1, [12]), (1, []), (1, []), (1, []), (1, [8]),
    ]  # fmt: skip


@pytest.mark.parametrize(("policy", "most"), [("guaranteed_no_evict", 30), ("max_utilization", 12)])
def test_a_prompt_that_is_not_cut_fits_a_step_and_so_does_all_that_may_be_computed_again(
    policy: str, most: int
) -> None:
    scheduler = make(chunked=False, capacity_scheduler_policy=policy)  # 16 tokens a step
    with pytest.raises(RequestRefusedError, match="16"):
        scheduler.add(Request(0, 17, 4))
    request = Request(1, 4, 30)
    scheduler.add(request)
    assert sum(plan.num_decodes * plan.num_steps for plan in run(scheduler)) == most - 1
