"""SGLang's rules, one by one; SGLang itself is compared with in experiments/oracles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.sequence import Request, RequestRefusedError
from tests.engine.core.builders import chunks, run, step
from tests.policies import SGLANG


def make(num_blocks: int = 100, *, max_num_batched_tokens: int = 16, **options: Any) -> Scheduler:
    rules = replace(SGLANG, options=options)
    return make_scheduler(
        rules, num_blocks=num_blocks, block_size=1, max_num_seqs=4, max_num_batched_tokens=max_num_batched_tokens
    )


@pytest.mark.parametrize("mixes", [False, True])
def test_prompts_come_first_and_decodes_sit_out_unless_chunks_are_mixed(mixes: bool) -> None:
    scheduler = make(enable_mixed_chunk=mixes)
    scheduler.add(Request(0, 4, 5))
    first = step(scheduler, 0)
    scheduler.add(Request(1, 20, 5))
    plans = [first, *(step(scheduler, now) for now in range(1, 4))]
    cut = 15 if mixes else 16
    assert [chunks(plan) for plan in plans] == [[(0, 0, 4)], [(1, 0, cut)], [(1, cut, 20 - cut)], []]
    assert [plan.num_decodes for plan in plans] == [0, int(mixes), int(mixes), 2]


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 2), ({"schedule_conservativeness": 0.0}, 3), ({"ignore_eos": True}, 1)]
)
def test_what_running_requests_may_generate_is_kept_free_in_part(options: dict[str, Any], expected: int) -> None:
    scheduler = make(num_blocks=80, **options)
    for number in range(3):  # each may have 44 tokens; 0.7 of what it generates is reckoned with while it runs
        scheduler.add(Request(number, 4, 40))
        plan = step(scheduler, number)
    assert plan.num_running == expected


def test_who_has_generated_the_least_is_retracted_and_comes_last() -> None:
    scheduler = make(num_blocks=50, schedule_conservativeness=0.0)
    for number in range(2):
        scheduler.add(Request(number, 4, 30))
        step(scheduler, number)
    scheduler.add(Request(2, 4, 40))  # no room beside them
    for plan in run(scheduler):
        if plan.preempted:
            break
    assert [s.request_id for s in plan.preempted] == [1]
    assert [s.request_id for s in scheduler.waiting] == [2, 1]


@pytest.mark.parametrize(("rule", "first"), [("fcfs", 1), ("lpm", 2), ("lof", 3)])
def test_who_is_next(rule: str, first: int) -> None:
    scheduler = make(schedule_policy=rule, max_num_batched_tokens=4)
    scheduler.add(Request(0, 4, 1, token_ids=[5, 6, 7, 8]))
    step(scheduler, 0)
    scheduler.add(Request(1, 4, 2, token_ids=[1, 2, 3, 4]))
    scheduler.add(Request(2, 4, 2, token_ids=[5, 6, 7, 9]))
    scheduler.add(Request(3, 4, 9, token_ids=[2, 3, 4, 5]))
    assert [s.request_id for s in step(scheduler, 1).admitted][0] == first


def test_a_queue_can_be_in_an_order_that_belongs_to_nobody_and_samples_are_refused() -> None:
    scheduler = make(schedule_policy="random", max_num_batched_tokens=4)
    for number in range(12):
        scheduler.add(Request(number, 4, 1))
    order = [s.request_id for plan in run(scheduler) for s in plan.admitted]
    assert sorted(order) == list(range(12)) and order != sorted(order)
    with pytest.raises(RequestRefusedError, match="share blocks that they write to"):
        scheduler.add(Request(20, 4, 4, num_sequences=2))


def test_requests_are_received_in_one_of_several_steps_with_decodes_and_behind_prompts() -> None:
    scheduler = make(scheduler_recv_interval=4)
    admitted = []
    for now in range(16):
        if now in (0, 1, 2, 8):
            scheduler.add(Request(now, 4, 15))
        admitted.append([s.request_id for s in step(scheduler, now).admitted])
    # 1 comes while the prompt of 0 runs; 2 and 8 wait until four steps in a row had decodes alone.
    assert [(now, each) for now, each in enumerate(admitted) if each] == [(0, [0]), (1, [1]), (2, [2]), (11, [8])]
