"""What policies decide beyond the composition of a step: who is next, when to plan again, and policies of one's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.core.admission.waiting_queue import QueueOrder
from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.policies import POLICIES
from engine.core.policies.mixed import Mixed
from engine.core.running.preemption import VICTIM_RULES, Preemption
from engine.core.sequence import Request, Sequence
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run, sequences, step


def by_output(sequence: Sequence) -> int:
    return sequence.request.max_tokens


class ShortestFirst(Mixed):
    """Admits the shortest output first, as if lengths were known."""

    def __init__(self, order: QueueOrder, preemption: Preemption, options: Any) -> None:
        super().__init__(by_output, preemption, options)


def test_a_policy_of_ones_own_needs_a_class_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "shortest_first", ShortestFirst)
    scheduler = make("shortest_first", max_num_seqs=1)
    for i, max_tokens in enumerate([9, 3, 6, 3]):
        scheduler.add(Request(i, 4, max_tokens))
    admitted = [ids(plan.admitted) for plan in run(scheduler) if plan.admitted]
    assert admitted == [[1], [3], [2], [0]]


def test_a_name_that_is_no_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="policy='shortest_first': choose one of admission_order, .*mixed"):
        make("shortest_first")


def test_static_batches_take_one_plan_per_event_and_not_one_per_step() -> None:
    """Three batches of eight: each admission is an event, and the end of each request."""
    plans = {}
    for groups in (False, True):
        scheduler = make("static", num_blocks=400)
        for i in range(24):
            scheduler.add(Request(i, 8, 10 * (i % 8 + 1)))
        plans[groups] = list(run(scheduler, groups=groups))
    assert len(plans[True]) == 3 * (1 + 8)
    assert sum(plan.num_steps for plan in plans[True]) == len(plans[False]) == 3 * (1 + 79)
    assert [ids(plan.admitted) for plan in plans[True] if plan.admitted] == [[*range(i, i + 8)] for i in (0, 8, 16)]


def test_a_static_batch_waits_for_the_one_before_it_and_a_while_for_more() -> None:
    scheduler = make("static", max_num_seqs=2, options={"max_queue_delay_s": 10e-9})
    scheduler.add(Request(0, 4, 3, arrival_time=5))
    assert scheduler.schedule(6) is None and scheduler.wait_until == 15
    scheduler.add(Request(1, 4, 3, arrival_time=7))
    scheduler.add(Request(2, 4, 3, arrival_time=7))
    assert ids(step(scheduler, 7).admitted) == [0, 1], "two fill a batch"
    assert [step(scheduler, now).num_waiting for now in (8, 9)] == [1, 1]
    assert scheduler.schedule(10) is None and scheduler.wait_until == 17
    assert ids(step(scheduler, 17).admitted) == [2]


@pytest.mark.parametrize(("queue", "admitted"), [("priority", [2]), ("fcfs", [])])
def test_an_urgent_arrival_enters_beside_a_head_that_does_not_fit(queue: str, admitted: list[int]) -> None:
    scheduler = make(num_blocks=6, queue=queue)
    scheduler.add(Request(0, 12, 9))
    scheduler.add(Request(1, 20, 2))  # five blocks, and two are free
    plans = list(itertools.islice(run(scheduler), 2))
    assert plans[1].horizon > 1 and plans[1].num_waiting == 1, "nothing can be admitted, so steps run on"
    scheduler.commit(plans[1], 2)
    scheduler.add(Request(2, 4, 2, priority=-1))
    assert ids(step(scheduler, 2).admitted) == admitted


def test_the_less_urgent_give_way_and_the_most_urgent_never() -> None:
    scheduler = make(num_blocks=5)
    for i, (num_prompt_tokens, priority) in enumerate([(7, -1), (7, 1), (2, 2)]):
        scheduler.add(Request(i, num_prompt_tokens, 9, priority=priority))
    victims = [victim for plan in run(scheduler) for victim in ids(plan.preempted)]
    assert victims[:2] == [2, 1] and 0 not in victims


@pytest.mark.parametrize(("rule", "victim"), [("spare_last", 0), ("last", 0), ("least_urgent", 2)])
def test_the_last_admitted_or_the_last_come_gives_way(rule: str, victim: int) -> None:
    """Request 0 came first, and was preempted and admitted again since."""
    scheduler = make()
    for i in range(3):
        scheduler.add(Request(i, 4, 4))
    by_id = sequences(scheduler)
    in_order_of_admission = [by_id[1], by_id[2], by_id[0]]
    assert VICTIM_RULES[rule](reversed(in_order_of_admission), None, scheduler.blocks.pool) is by_id[victim]
    by_id[1].request.priority = 1
    expected = 1 if rule != "last" else victim
    assert VICTIM_RULES[rule](reversed(in_order_of_admission), None, scheduler.blocks.pool) is by_id[expected]


@pytest.mark.parametrize(("policy", "victim", "chunk"), [("mixed", 0, []), ("admission_order", 1, [(0, 8, 4)])])
def test_decodes_take_blocks_first_or_whoever_was_admitted_first(
    policy: str, victim: int, chunk: list[tuple[int, int, int]]
) -> None:
    """At the third step all four blocks are held, and the prompt of request 0 needs one more."""
    scheduler = make(policy, num_blocks=4, allocation="chunk", victim="last", long_prefill_token_threshold=4)
    scheduler.add(Request(0, 12, 2))
    scheduler.add(Request(1, 4, 9))
    plans = [step(scheduler, now) for now in range(3)]
    assert [chunks(plan) for plan in plans] == [[(0, 0, 4), (1, 0, 4)], [(0, 4, 4)], chunk]
    assert [ids(plan.preempted) for plan in plans] == [[], [], [victim]]


def test_who_sat_out_a_step_that_came_out_empty_takes_part_in_the_next() -> None:
    """Request 0 gives way itself while its last step is under way, so request 1 is paused and nobody is left."""
    scheduler = make("admission_order", num_blocks=18, block_size=1, allocation="chunk", queue="fcfs",
                     async_scheduling=True, long_prefill_token_threshold=4)  # fmt: skip
    scheduler.add(Request(0, 16, 1, priority=2))
    scheduler.add(Request(1, 2, 12, priority=1))
    list(run(scheduler))
    assert not scheduler.unfinished


def test_of_equal_blocks_that_one_step_fills_that_of_the_first_admitted_is_found() -> None:
    """In the second step the second chunk of request 0 fills a block, and the first token of request 1 an equal one."""
    scheduler = make("admission_order", allocation="chunk", full_hit="recompute_block", long_prefill_token_threshold=4)
    scheduler.add(Request(0, 12, 2, token_ids=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]))
    scheduler.add(Request(1, 7, 9, token_ids=[0, 1, 2, 3, 4, 5, 6]))
    plans = [step(scheduler, now) for now in range(2)]
    assert [chunks(plan) for plan in plans] == [[(0, 0, 4), (1, 4, 3)], [(0, 4, 4)]] and ids([*plans[1].decodes]) == [1]
    one, other = sequences(scheduler).values()
    assert one.block_hashes == other.block_hashes and one.block_table[1] != other.block_table[1]
    assert scheduler.blocks.match(bare_sequence(2, 9, token_ids=[*range(9)])).blocks == one.block_table[:2]


def test_a_padded_batch_keeps_its_shape_until_its_longest_request_ends() -> None:
    scheduler = make("static", num_blocks=400, max_num_seqs=4)
    for i, num_output in enumerate((5, 50, 10, 100)):
        scheduler.add(Request(i, 3 + i, num_output))
    plans = [*run(scheduler, groups=True)]
    sizes = [(chunk.start, chunk.num_tokens) for chunk in plans[0].work.chunks]
    assert sizes == [(0, 6)] * 4, "prompts are padded to the longest"
    assert plans[0].num_padding_tokens == 3 + 2 + 1
    assert [plan.num_decodes for plan in plans] == [0, 4, 4, 4, 4] and sum(plan.num_steps for plan in plans) == 100
    assert [plan.num_padding_seqs for plan in plans] == [0, 0, 1, 2, 3]
    assert [plan.num_running for plan in plans] == [4, 4, 3, 2, 1]
    num_live = sum((plan.num_decodes - plan.num_padding_seqs) * plan.num_steps for plan in plans)
    assert (4 + num_live) / 400 == 0.4125
    contexts = [plan.work.num_context_tokens for plan in plans]
    assert contexts == [0, 4 + 5 + 6 + 7, 8 + 9 + 10 + 11, 13 + 14 + 15 + 16, 53 + 54 + 55 + 56]
    assert scheduler.blocks.num_used_blocks() == 0


def test_padding_gives_way_before_anybody_else() -> None:
    scheduler = make("static", num_blocks=6, max_num_seqs=2)
    for i, num_output in enumerate((2, 12)):
        scheduler.add(Request(i, 4, num_output))
    plans = [*run(scheduler)]
    assert [plan.num_padding_seqs for plan in plans[2:]] == [1] * 7 + [0] * 3
    assert not any(plan.preempted for plan in plans)


def test_speculation_has_no_batch_of_fixed_shape() -> None:
    with pytest.raises(ValueError, match="options.padded=true: rows of padding draft no tokens"):
        make("static", make_decodes=lambda block_size, longest: UnforeseenDecodes(block_size, longest, 2))


@pytest.mark.parametrize(("cuts_alone", "sizes"), [(True, [4, 4]), (False, [16, 4])])
def test_a_prompt_that_is_alone_is_cut_to_the_threshold_or_not(cuts_alone: bool, sizes: list[int]) -> None:
    own = {"cuts_alone": cuts_alone}
    scheduler = make("admission_order", long_prefill_token_threshold=4, max_num_batched_tokens=16, options=own)
    scheduler.add(Request(0, 40, 1))
    alone = step(scheduler)
    scheduler.add(Request(1, 4, 1))
    assert [plan.prefills[0].num_tokens for plan in (alone, step(scheduler, 1))] == sizes


@pytest.mark.parametrize(("ends", "decodes"), [(True, [0]), (False, [0, 2])])
def test_who_gives_way_itself_ends_the_step_or_not(ends: bool, decodes: list[int]) -> None:
    own = {"ends_with_giving_way": ends}
    scheduler = make("admission_order", num_blocks=5, victim="least_urgent", queue="fcfs", options=own)
    for i, num_prompt_tokens in enumerate([5, 3, 5]):
        scheduler.add(Request(i, num_prompt_tokens, 9, priority=i % 2))
    step(scheduler)
    step(scheduler, 1)
    plan = scheduler.schedule(2)  # the second request needs a block, and nobody is less urgent
    assert plan is not None and ids(plan.preempted) == [1] and ids([*plan.decodes]) == decodes


def test_a_victim_that_was_served_gives_back_its_share() -> None:
    """Request 0 is served first, and makes way for request 2: its token goes to the first fork of request 1, and of the
    pool's eleven blocks all are in use then."""
    scheduler = make("admission_order", num_blocks=11, block_size=1, max_num_batched_tokens=6, max_num_seqs=6,
                     victim="least_urgent", queue="fcfs", allocation="chunk", admission="first_chunk",
                     long_prefill_token_threshold=2, enable_prefix_caching=False)  # fmt: skip
    scheduler.add(Request(0, 2, 9, priority=1))
    step(scheduler)
    for i, (num_prompt_tokens, num_sequences) in enumerate([(1, 3), (6, 1), (6, 1)], 1):
        scheduler.add(Request(i, num_prompt_tokens, 9, num_sequences=num_sequences))
    assert ids(step(scheduler, 1).admitted) == [1, 2, 3]
    plan = step(scheduler, 2)
    assert ids(plan.preempted) == [0] and chunks(plan) == [(2, 2, 2), (3, 2, 2)]
    assert (plan.num_decodes, len(plan.paused)) == (2, 1) and plan.num_used_blocks == 11


def test_who_sits_out_a_step_sits_out_no_more_than_that_step() -> None:
    """Request 1 gives way itself, so that request 2 sits the step out; nobody could enter for a long time, as the head
    needs three seats of two."""
    scheduler = make("admission_order", num_blocks=7, max_num_seqs=4, victim="least_urgent", allocation="chunk",
                     admission="first_chunk", long_prefill_token_threshold=4)  # fmt: skip
    scheduler.add(Request(0, 4, 50))
    scheduler.add(Request(1, 20, 8, priority=5))
    step(scheduler)
    scheduler.add(Request(2, 4, 50))
    for now in (1, 2):
        step(scheduler, now)
    scheduler.add(Request(3, 4, 50, priority=-1, num_sequences=3))
    plan = scheduler.schedule(3)
    assert plan is not None and (ids(plan.preempted), ids(plan.paused), ids([*plan.decodes])) == ([1], [2], [0])
    assert plan.horizon == 1
