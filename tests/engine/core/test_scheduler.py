"""The scheduler's rules, one by one; soundness under load is the fuzz test's."""

from __future__ import annotations

import random

import pytest

from engine.core.plan import StepPlan
from engine.core.policies import POLICIES
from engine.core.sequence import Request, RequestRefusedError, Sequence, SequenceStatus
from tests.engine.core.builders import chunks, make, run, step
from tests.policies import ON_ANY_POOL
from tests.selection import few

ALL = pytest.mark.parametrize("policy", ON_ANY_POOL)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "reason"),
    [
        (0, 5, "prompt is empty"),
        (5, 0, "max_tokens=0"),
        (5, -1, "max_tokens=-1"),
        (400, 1, "of 400"),
        (9999, 1, "of 400"),
    ],
)
def test_what_cannot_run_is_refused_and_stops_nobody(num_prompt: int, max_tokens: int, reason: str) -> None:
    scheduler = make()
    scheduler.add(Request(0, 5, 5))
    with pytest.raises(RequestRefusedError, match=reason):
        scheduler.add(Request(1, num_prompt, max_tokens))
    assert sum(plan.num_decodes for plan in run(scheduler)) == 4
    with pytest.raises(RequestRefusedError, match="in use"):
        scheduler.add(Request(2, 1, 1))
        scheduler.add(Request(2, 1, 1))


@pytest.mark.parametrize(
    "arguments", [{"max_num_seqs": 0}, {"max_num_seqs": 65}, {"watermark": 1.0}, {"block_size": 0}]
)
def test_impossible_limits_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make(**arguments)  # type: ignore[arg-type]


@ALL
def test_output_ends_at_max_model_len(policy: str) -> None:
    scheduler = make(policy, max_model_len=10)
    request = Request(0, 6, 100)
    scheduler.add(request)
    list(run(scheduler))
    assert request.num_output_tokens == 4 and request.sequences[0].status is SequenceStatus.FINISHED


@ALL
def test_max_num_seqs_bounds_the_running_set(policy: str) -> None:
    scheduler = make(policy, max_num_seqs=3)
    for i in range(10):
        scheduler.add(Request(i, 4, 5 + i))
    assert max(plan.num_running for plan in run(scheduler)) == 3


def test_prefill_first_separates_and_cuts_only_the_first_prompt() -> None:
    scheduler = make("prefill_first", max_num_batched_tokens=10)
    for i, num_prompt in enumerate([4, 5, 3, 25]):
        scheduler.add(Request(i, num_prompt, 2))
    plans = [(chunks(plan), plan.num_decodes) for plan in run(scheduler)]
    assert plans == [
        ([(0, 0, 4), (1, 0, 5)], 0),
        ([(2, 0, 3)], 0),
        ([(3, 0, 10)], 0),
        ([(3, 10, 10)], 0),
        ([(3, 20, 5)], 0),
        ([], 4),
    ]


def test_mixed_decodes_first_and_fills_up_with_chunks() -> None:
    scheduler = make("mixed", max_num_batched_tokens=10)
    for i, num_prompt in enumerate([4, 5, 3, 12]):
        scheduler.add(Request(i, num_prompt, 3))
    plans = [(chunks(plan), plan.num_decodes) for plan in run(scheduler)]
    assert plans == [
        ([(0, 0, 4), (1, 0, 5), (2, 0, 1)], 0),
        ([(2, 1, 2), (3, 0, 6)], 2),
        ([(3, 6, 6)], 3),
        ([], 2),
        ([], 1),
    ]


def test_prompts_that_must_not_be_cut_wait_for_a_step_that_has_room() -> None:
    scheduler = make(enable_chunked_prefill=False, max_num_batched_tokens=10)
    for i in range(2):
        scheduler.add(Request(i, 6, 9))
    assert [chunks(step(scheduler, now)) for now in range(2)] == [[(0, 0, 6)], [(1, 0, 6)]]


def test_context_of_a_decode_is_its_length() -> None:
    scheduler = make(max_num_seqs=2)
    scheduler.add(Request(0, 5, 3))
    scheduler.add(Request(1, 9, 2))
    assert [plan.work.num_context_tokens for plan in run(scheduler)] == [0, 6 + 10, 7]


@ALL
def test_block_size_one(policy: str) -> None:
    scheduler = make(policy, block_size=1, num_blocks=30)
    for i in range(4):
        scheduler.add(Request(i, 5, 6, token_ids=[1, 2, 3, 4, i % 2]))
    list(run(scheduler))
    assert not scheduler.unfinished


@pytest.mark.parametrize("policy", sorted(name for name, each in POLICIES.items() if not each.chooses_victims))
@pytest.mark.parametrize("seed", few(range(5), 2))
def test_a_preempted_sequence_comes_back_first_and_is_not_the_next_victim(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    scheduler = make(policy, num_blocks=14, block_size=2, max_num_seqs=8)
    for i in range(30):
        scheduler.add(Request(i, rng.randint(1, 6), rng.randint(1, 20)))
    victims: list[Sequence] = []
    waiting: set[Sequence] = set()  # preempted and not back yet
    admitted: list[Sequence] = []  # those running, in order of admission
    for plan in run(scheduler):
        for victim in plan.preempted:
            others = [s for s in admitted if not victims or s is not victims[-1]]
            assert victim is (others or admitted)[-1], "the last admitted gives way, but never twice running"
            admitted.remove(victim)
            victims.append(victim)
        for sequence in plan.admitted:
            assert sequence in waiting or not waiting, "somebody overtook a preempted sequence"
            waiting.discard(sequence)
        waiting |= {*plan.preempted}
        admitted += plan.admitted
        admitted = still_running(admitted, plan)
    assert len(victims) > 3


def still_running(admitted: list[Sequence], plan: StepPlan) -> list[Sequence]:
    """Of these, the ones that the plan does not finish."""
    growing = {*plan.decodes, *(chunk.sequence for chunk in plan.prefills if chunk.is_last)}
    return [s for s in admitted if s not in growing or s.num_tokens + 1 < s.end_length]


@ALL
def test_what_was_generated_survives_a_preemption(policy: str) -> None:
    scheduler = make(policy, num_blocks=6, block_size=2)
    requests = [Request(i, 4, 7) for i in range(2)]
    for request in requests:
        scheduler.add(request)
    restarts = []
    for plan in run(scheduler):
        restarts += [c for c in plan.prefills if c.sequence.num_preemptions]
    (restart,) = restarts
    victim = restart.sequence
    assert restart.start + restart.num_tokens > victim.request.num_prompt_tokens  # the prompt and what came after it
    assert [request.num_output_tokens for request in requests] == [7, 7]
    assert sum(request.num_preemptions for request in requests) == 1
    assert victim.num_recomputed_tokens == victim.num_lost_tokens - restart.start


def test_the_watermark_leaves_room_for_those_who_run() -> None:
    scheduler = make(num_blocks=20, block_size=4, watermark=0.25)
    scheduler.add(Request(0, 32, 2))  # 8 blocks: alone, it needs no reserve
    scheduler.add(Request(1, 32, 2))  # 8 more would leave 4 of the 5 reserved
    plan = scheduler.schedule(0)
    assert plan is not None and chunks(plan) == [(0, 0, 32)] and plan.num_waiting == 1


def test_priority_decides_who_goes_first_and_who_gives_way() -> None:
    scheduler = make(num_blocks=7, block_size=2, max_num_seqs=2)
    for i, priority in enumerate([5, 0, 5]):
        scheduler.add(Request(i, 4, 6, priority=priority))
    plans = run(scheduler)
    assert [s.request_id for s in next(plans).admitted] == [1, 0]
    victims = [s.request_id for plan in plans for s in plan.preempted]
    assert 1 not in victims


def test_horizon_ends_with_the_first_finish_the_pool_or_a_possible_admission() -> None:
    scheduler = make(num_blocks=10, block_size=4, max_num_seqs=2)
    scheduler.add(Request(0, 4, 21))
    scheduler.add(Request(1, 4, 11))
    plans = run(scheduler)
    next(plans)
    assert next(plans).horizon == 10  # request 1 has ten tokens to go
    scheduler = make(num_blocks=4, block_size=4, max_num_seqs=2)
    for i in range(2):
        scheduler.add(Request(i, 4, 11))
    plans = run(scheduler)
    next(plans)
    assert next(plans).horizon == 4  # the pool's last two blocks hold four steps


def test_abort_frees_everything_and_lets_the_queue_move() -> None:
    scheduler = make(num_blocks=4, block_size=4, max_num_seqs=2)
    for i in range(2):
        scheduler.add(Request(i, 12, 3))
    plan = scheduler.schedule(0)
    assert plan is not None and plan.num_waiting == 1
    scheduler.commit(plan, 1)
    assert scheduler.abort(0).sequences[0].status is SequenceStatus.ABORTED
    plan = scheduler.schedule(1)
    assert plan is not None and chunks(plan) == [(1, 0, 12)]
    scheduler.commit(plan, 2)
    scheduler.abort(1)
    assert scheduler.blocks.num_used_blocks() == 0 and scheduler.schedule(2) is None
    with pytest.raises(KeyError):
        scheduler.abort(1)


@ALL
@pytest.mark.parametrize("plans_ahead", [False, True])
def test_abort_while_plans_are_under_way_frees_all_and_stops_nobody(policy: str, plans_ahead: bool) -> None:
    scheduler = make(policy, async_scheduling=plans_ahead)
    requests = [Request(i, 6, 8) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    for num_plans, plan in enumerate(run(scheduler)):
        if num_plans == 0:  # its prompt is being computed
            assert requests[0].sequences[0] in {chunk.sequence for chunk in plan.prefills}
            scheduler.abort(0)
            scheduler.check_integrity()
        if num_plans == 4:
            assert requests[1].sequences[0] in plan.decodes
            scheduler.abort(1)
            scheduler.check_integrity()
    assert [request.sequences[0].status for request in requests] == [
        SequenceStatus.ABORTED, SequenceStatus.ABORTED, SequenceStatus.FINISHED
    ]  # fmt: skip
    assert requests[2].num_output_tokens == 8 and [r.finish_time is None for r in requests] == [True, True, False]
    assert scheduler.blocks.num_used_blocks() == 0


def test_whoever_was_behind_an_aborted_head_that_did_not_fit_is_admitted_at_once() -> None:
    scheduler = make(num_blocks=6)
    for i, num_prompt_tokens in enumerate([12, 20, 4]):  # three, five and one blocks
        scheduler.add(Request(i, num_prompt_tokens, 9))
    plans = run(scheduler)
    assert [next(plans).num_waiting, next(plans).num_waiting] == [2, 2]
    scheduler.abort(1)
    assert chunks(next(plans)) == [(2, 0, 4)]


@pytest.mark.parametrize(("num_prompt", "num_outputs"), [(1, 5), (2, 4)])
def test_a_run_of_steps_takes_blocks_that_the_plan_before_it_frees_and_none_that_is_cached(
    num_prompt: int, num_outputs: int
) -> None:
    """The last block of request 2, which is partial, is free before the run in which request 1 needs more."""
    for groups in (False, True):
        scheduler = make(async_scheduling=True, num_blocks=6)
        for requests in (
            [Request(0, 8, 1, token_ids=[1] * 8)],
            [Request(1, 1, 12, token_ids=[2]), Request(2, num_prompt, num_outputs, token_ids=[3] * num_prompt)],
            [again := Request(3, 9, 1, token_ids=[1] * 9)],
        ):
            for request in requests:
                scheduler.add(request)
            longest = max(plan.num_steps for plan in run(scheduler, groups=groups))
            assert (longest > 1) == (groups and len(requests) > 1)
        assert again.num_cached_tokens == 8


def test_a_plan_is_extended_when_the_one_before_it_is_committed() -> None:
    scheduler = make(async_scheduling=True)
    scheduler.add(Request(0, 4, 20))
    step(scheduler)
    first, second = scheduler.schedule(1), scheduler.schedule(1)
    assert first is not None and second is not None and second.horizon > 1
    with pytest.raises(ValueError):
        scheduler.extend(second, 2)
    scheduler.commit(first, 2)
    assert scheduler.extend(second, 2).num_steps == 2
