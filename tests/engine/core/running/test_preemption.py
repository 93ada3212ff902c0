"""Who gives way, and what it keeps: a prefix of its blocks on the device, or a copy on the host where that pays."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.kv.block_manager import BlockManager
from engine.core.running.preemption import VICTIM_RULES
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence
from engine.engine_config import EngineConfig
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run, sequences, step


def starved(**options: Any) -> tuple[Scheduler, list[Sequence]]:
    """Three sequences with three full blocks each of a pool of nine, so that the next decode step lacks three."""
    scheduler = make(num_blocks=9, preemption="partial", **options)
    for i in range(3):
        scheduler.add(Request(i, 12, 9))
    step(scheduler)
    return scheduler, [request.sequences[0] for request in scheduler.unfinished]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "admission_order", "static"])
def test_only_as_many_tail_blocks_go_as_are_needed(policy: str, caching: bool) -> None:
    scheduler, (first, second, third) = starved(policy=policy, enable_prefix_caching=caching)
    plan = step(scheduler, 1)
    assert ids(plan.preempted) == [2] and ids(list(plan.decodes)) == [0, 1]
    assert len(third.block_table) == 1 and third.num_computed_tokens == 4, "two blocks for two decodes"
    assert scheduler.blocks.num_free_blocks == 0 and third.num_partial_preemptions == 1
    for now in range(2, 5):  # 4 tokens later the others need two more blocks
        step(scheduler, now)
        assert len(third.block_table) == 1
    plan = step(scheduler, 5)
    assert not third.block_table and third.num_computed_tokens == 0, "who waits gives up the rest first"
    assert ids(plan.preempted) == [1] and len(second.block_table) == 4, "then the next gives way, and keeps what it can"
    assert not first.num_preemptions


@pytest.mark.parametrize("caching", [True, False])
def test_who_comes_back_computes_only_what_it_lost(caching: bool) -> None:
    scheduler = make(num_blocks=8, preemption="partial", enable_prefix_caching=caching)
    for i, max_tokens in enumerate([3, 9]):
        scheduler.add(Request(i, 15, max_tokens))
    plans = list(run(scheduler))
    (again,) = [chunk for plan in plans[1:] for chunk in chunks(plan)]
    assert again == (1, 12, 5), "of 16 computed tokens, those of one block went"
    (preempting,) = [plan for plan in plans if plan.preempted]
    assert preempting.preempted[0].num_recomputed_tokens == 4


def test_the_head_of_the_queue_takes_the_blocks_of_those_behind_it_if_nobody_runs() -> None:
    scheduler, (_, _, third) = starved()
    step(scheduler, 1)
    urgent = Request(3, 34, 1, priority=-1)
    scheduler.add(urgent)
    scheduler.abort(0)
    scheduler.abort(1)
    plan = step(scheduler, 2)
    assert ids(plan.admitted) == [3] and not third.block_table, "it needs all nine blocks, of which one was kept"
    assert all(run(scheduler)) and not scheduler.unfinished
    assert third.num_output_tokens == 9 and third.num_recomputed_tokens == 12


def test_an_abort_frees_what_was_kept() -> None:
    scheduler, _ = starved()
    step(scheduler, 1)
    for i in range(3):
        scheduler.abort(i)
        scheduler.check_integrity()
    assert scheduler.blocks.num_free_blocks == 9 and not scheduler.waiting.holders


@pytest.mark.parametrize(
    ("block_us", "shares", "is_swapped"),
    [(10.0, False, True), (25.0, False, False), (10.0, True, False)],
    ids=["the link is fast", "the link is slow", "what is lost is little"],
)
def test_auto_takes_what_is_predicted_to_take_less_time(block_us: float, shares: bool, is_swapped: bool) -> None:
    """Three computed blocks of four tokens: 6 transfers against 12 tokens of 10 us, or 4 where others hold the rest."""
    scheduler = make(
        num_blocks=5 if shares else 6, num_host_blocks=9, preemption="auto", recompute_token_us=10.0,
        transfer_block_us=block_us,
    )  # fmt: skip
    prompt = list(range(12))
    for i in range(2):
        tokens = prompt[:8] + [90 + i] * 4 if shares else [100 * i + token for token in prompt]
        scheduler.add(Request(i, 12, 9, token_ids=tokens))
    preempted = [sequence for plan in run(scheduler) for sequence in plan.preempted]
    assert preempted and bool(preempted[0].num_swaps) == is_swapped


@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_a_copy_needs_a_tier(mode: Any) -> None:
    with pytest.raises(ValueError, match=f"^preemption='{mode}': needs a host tier"):
        make(preemption=mode)
    with pytest.raises(ValueError, match=f"^preemption='{mode}': needs host memory .* host_kv_gib > 0"):
        EngineConfig(preemption=mode)


def test_a_prediction_needs_the_time_of_a_token() -> None:
    with pytest.raises(ValueError, match="^recompute_token_us=None: "):
        make(preemption="auto", num_host_blocks=1)
    with pytest.raises(ValueError, match="^recompute_token_us=None: "):
        EngineConfig(preemption="auto", host_kv_gib=1.0)
    with pytest.raises(ValueError, match="^recompute_token_us=2: read by preemption='auto' only"):
        SchedulerOptions(recompute_token_us=2.0)
    with pytest.raises(ValueError, match="^recompute_token_us=0: must be a number > 0"):
        SchedulerOptions(preemption="auto", recompute_token_us=0.0)


@pytest.mark.parametrize("name", ["host_kv_gib", "host_gb_per_s"])
def test_the_size_and_the_rate_of_host_memory_have_a_range(name: str) -> None:
    for value in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=f"^{name}={value}: must be a number"):
            EngineConfig(**{name: value})  # type: ignore[arg-type]


def test_an_urgent_one_counts_on_what_those_behind_it_keep() -> None:
    scheduler = make("priority", num_blocks=5, preemption="partial")
    for i, (num_prompt, priority) in enumerate([(11, 5), (7, 4)]):
        scheduler.add(Request(i, num_prompt, 9, priority=priority))
    waiting, running = (request.sequences[0] for request in scheduler.unfinished)
    for now in range(3):
        step(scheduler, now)
    assert (len(waiting.block_table), len(running.block_table)) == (2, 3)
    scheduler.add(Request(2, 15, 1))
    plan = step(scheduler, 3)
    assert ids(plan.admitted) == [2] and ids(plan.preempted) == [1], "four blocks, of which one was not kept"
    assert (len(waiting.block_table), len(running.block_table)) == (0, 1)


@pytest.mark.parametrize(
    ("rule", "victim"), [("fewest_tokens_lost", 1), ("most_blocks_freed", 2), ("shortest", 3), ("last", 4)]
)
def test_each_rule_takes_the_one_that_its_name_says(rule: Any, victim: int) -> None:
    scheduler = make(victim=rule, num_blocks=1000, max_num_batched_tokens=300)
    for i, (num_prompt_tokens, max_tokens) in enumerate([(90, 100), (20, 100), (100, 100), (30, 10), (40, 100)]):
        scheduler.add(Request(i, num_prompt_tokens, max_tokens))
    step(scheduler)
    (planner,) = scheduler._planners
    assert planner.choose_victim().request_id == victim


def test_shared_blocks_are_not_freed() -> None:
    """Both sequences hold three blocks; those of the first are shared with a third one."""
    blocks = BlockManager(20, 4)
    one, other, third = (bare_sequence(i, 12, token_ids=[i // 2 * 0 + (i == 1)] * 12) for i in range(3))
    for sequence in (one, other, third):
        match = blocks.match(sequence)
        blocks.admit(sequence, match, 12)
        blocks.register(sequence, 12)
        blocks.settle()
    assert VICTIM_RULES["most_blocks_freed"]([third, one, other], None, blocks.pool) is other


def test_priority_takes_no_victim_rule_and_knows_its_own() -> None:
    with pytest.raises(ValueError, match="^victim='last': policy=priority preempts by its own order$"):
        make("priority", victim="last")
    scheduler = make("priority", num_blocks=1000, options={"ageing_s": 10e-9})
    for i, (arrival, priority) in enumerate([(50, 0), (0, 1), (45, 1)]):
        scheduler.add(Request(i, 4, 9, arrival, priority=priority))
    step(scheduler)
    assert scheduler._planners[0].choose_victim() is sequences(scheduler)[2]
